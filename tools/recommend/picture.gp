# gnuplot -e "data='DIRECTORY'" picture.gp >PICTURE.svg: plots HR@K of measured.txt, and the rewards
# in reward.txt with their moving mean over ten steps.
set terminal svg size 1000,380 dynamic noenhanced font 'sans,13' background '#ffffff'
set encoding utf8
set multiplot layout 1,2
set border 3 lc rgb '#666666'
set tics nomirror scale 0.6 textcolor rgb '#333333'
set grid lc rgb '#e4e4e4' lt 1 lw 1
set key noenhanced samplen 2.2 spacing 1.15 opaque fc rgb '#ffffff' noautotitle left top reverse Left
of(name) = sprintf("< awk -F'\\t' -v name=%s '$1 == name && ($2 <= 3 || $2 %% 5 == 0)' %s/measured.txt", name, data)
set xlabel 'K'
set ylabel 'HR@K on the test'
set xrange [0:20.5]
set yrange [0:0.7]
plot of('rl') using 2:3 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#d62728' title 'reinforcement learning', \
     of('sft') using 2:3 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#1f77b4' title 'fine-tuning', \
     of('next') using 2:3 with linespoints pt 7 ps 0.4 lw 1.4 lc rgb '#2ca02c' title 'what followed the last item most often', \
     of('popular') using 2:3 with linespoints pt 7 ps 0.4 lw 1.4 lc rgb '#9467bd' title 'most popular', \
     of('random') using 2:3 with lines lw 1.4 dt 2 lc rgb '#7f7f7f' title 'random'
set xlabel 'step of reinforcement learning'
set ylabel 'HR@8 of the search on training prompts'
set autoscale xy
set xrange [0:*]
unset key
array w[10]
mean(i, v) = (w[1 + int(i) % 10] = v, sum [k = 1:(i < 9 ? int(i) + 1 : 10)] w[k] / (i < 9 ? i + 1 : 10))
plot data.'/reward.txt' using 1:2 with lines lw 1 lc rgb '#f2b6b6', \
     data.'/reward.txt' using 1:(mean($0, $2)) with lines lw 2 lc rgb '#d62728'
unset multiplot
