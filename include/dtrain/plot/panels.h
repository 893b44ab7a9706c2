/* panels.h - plots: panels of curves, drawn by gnuplot as PNG or SVG. Every function is Local. */
#ifndef DTRAIN_PICTURE_H
#define DTRAIN_PICTURE_H

#include "dtrain/plot/curve.h"

/** Styles of curves. */
typedef enum dt_style {
    DT_STYLE_RAW, /* faint, behind all others */
    DT_STYLE_LINE,
    DT_STYLE_POINTS, /* a line with a dot at each value, if there are few */
    DT_STYLE_THIN
} dt_style;

/** Appearance of a curve, and its axis. */
typedef struct dt_look {
    dt_style style;
    int colour, dash; /* indices into the palette and the dash patterns, modulo their sizes; dash 0: solid */
    bool right;       /* uses the right axis */
} dt_look;

typedef struct dt_series {
    dt_curve curve; /* owned by the plot; without points: only an entry of the legend, in a neutral colour */
    dt_look look;
    char *title; /* in the legend; "": none */
} dt_series;

typedef struct dt_panel {
    dt_series *series;
    int n_series;
    char label[2][128]; /* of the left and the right axis; right "": no right axis */
    double height;      /* relative to the other panels */
} dt_panel;

enum { DT_MAX_PANELS = 8 };
/** A plot. {0} to begin; freed with dt_picture_free. */
typedef struct dt_picture {
    char heading[1024], note[256]; /* above the panels, at the left and at the right */
    dt_plot_axis axis;
    dt_panel panels[DT_MAX_PANELS];
    int n_panels;
} dt_picture;

/** Append a curve, of which it takes ownership, also on failure. DT_ERR_MEMORY. */
dt_err dt_panel_add(dt_panel *p, dt_curve *curve, dt_look look, const char *title);

/** Draw to a file that ends in .png or .svg, by way of NAME.part. DT_ERR_WRITE; DT_ERR_FAULT: gnuplot is missing or
 *  failed. */
dt_err dt_picture_draw(const dt_picture *p, const char *path);
/** Free the plot, with its curves. Safe on {0}. */
void dt_picture_free(dt_picture *p);

/** A readable unit for values up to `largest`: divisor, and "million" for 1e6; 1 and "" for small values. */
typedef struct dt_scale {
    double divisor;
    const char *text;
} dt_scale;
dt_scale dt_scale_of(double largest);

#endif
