/* sim_elements.h - elements of 16 bits, stored as bits and used as floats. */
#ifndef CUDA_SIM_ELEMENTS_H
#define CUDA_SIM_ELEMENTS_H

#include <stdint.h>

/** bits_of rounds to nearest, ties to even. */
template <uint16_t (*bits_of)(float), float (*value_of)(uint16_t)> struct sim_element {
    uint16_t bits;
    sim_element() = default;
    sim_element(float x) : bits(bits_of(x)) {}
    operator float() const { return value_of(bits); }
};

#endif
