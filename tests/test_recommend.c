/* test_recommend.c - where a target is among predictions, and what that counts for. */
#include "cases.h"
#include "dtrain/recommend/ranking.h"

TEST(the_rank_is_that_of_the_first_of_its_kind)
{
    static const int32_t items[] = {7, -1, 3, 9, 3};
    assert_int_equal(dt_ranking_rank(7, items, 5), 0);
    assert_int_equal(dt_ranking_rank(3, items, 5), 2);
    assert_int_equal(dt_ranking_rank(3, items, 2), -1);
    assert_int_equal(dt_ranking_rank(4, items, 5), -1);
    assert_int_equal(dt_ranking_rank(-1, items, 5), -1); /* a target that is no item, among rows that name none */
    assert_int_equal(dt_ranking_rank(7, items, 0), -1);
}

/* A target at rank 2, the third: HR@1 = 0, HR@3 = 1, NDCG@3 = 0.5. */
TEST(gains_are_those_of_ndcg)
{
    assert_true(dt_ranking_gain(2, 1) == 0 && dt_ranking_gain(2, 2) == 0 && dt_ranking_gain(2, 3) == 0.5);
    assert_true(dt_ranking_gain(0, 1) == 1 && dt_ranking_gain(-1, 50) == 0);
    assert_true(fabs(dt_ranking_gain(1, 5) - 0.63092975357) < 1e-10);
    assert_true(dt_ranking_gain(6, 50) == 1.0 / 3);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
