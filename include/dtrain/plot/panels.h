/* panels.h - panels of curves above one another, drawn by gnuplot as PNG or SVG. */
#ifndef DTRAIN_PICTURE_H
#define DTRAIN_PICTURE_H

#include "dtrain/plot/curve.h"

typedef enum dt_style {
    DT_STYLE_RAW, /* faint, beneath all others */
    DT_STYLE_LINE,
    DT_STYLE_POINTS, /* a line with a dot at each value, while they are few */
    DT_STYLE_THIN
} dt_style;

/** How a curve looks, and where it belongs. */
typedef struct dt_look {
    dt_style style;
    int colour, dash; /* indices into the palette and into the patterns of dashes, which repeat; dash 0: solid */
    bool right;       /* belongs to the axis on the right */
} dt_look;

typedef struct dt_series {
    dt_curve curve; /* owned by the picture; without a point: a line of the legend alone, in no run's colour */
    dt_look look;
    char *title; /* in the legend; "" keeps it out */
} dt_series;

typedef struct dt_panel {
    dt_series *series;
    int n_series;
    char label[2][128]; /* of the left and the right axis; "" on the right: there is none */
    double height;      /* relative to the other panels */
} dt_panel;

enum { DT_MAX_PANELS = 8 };
/** {0} to start from; free with dt_picture_free. */
typedef struct dt_picture {
    char heading[1024], note[256]; /* above the panels, at the left and at the right */
    dt_axis axis;
    dt_panel panels[DT_MAX_PANELS];
    int n_panels;
} dt_picture;

/** Takes the curve over, also when it fails. DT_ERR_MEMORY. */
dt_err dt_panel_add(dt_panel *p, dt_curve *curve, dt_look look, const char *title);

/** Draw to a name that ends in .png or .svg, by way of NAME.part. DT_ERR_WRITE; DT_ERR_FAULT: gnuplot is missing or
 *  failed. */
dt_err dt_picture_draw(const dt_picture *p, const char *path);
void dt_picture_free(dt_picture *p);

/** The unit in which numbers up to `largest` are read best: divisor, and "million" for 1e6; 1 and "" for small ones. */
typedef struct dt_scale {
    double divisor;
    const char *text;
} dt_scale;
dt_scale dt_scale_of(double largest);

#endif
