"use strict";

/** A curve that a loop moves by less than this, on average, is at rest: in the strip, in the chart and in words. */
const AT_REST = 0.005;

/**
 * What is to be seen at loop `t`, in a sentence or two. changes: how far each loop moved the curve on average;
 * dark: the share of all x at which this loop still moved it; errors: distances to the hidden function, by loop;
 * where: the part of the plane that averages are of; most: the most loops of its training.
 */
function story({ t, changes, dark, errors, where, most }) {
  const move = changes[t - 1], error = errors[t - 1], by = `moved the curve by ${digits(move)} on average`;
  if (t === 1) return "Loop 1: a first glance at the points. Press play.";
  if (!Number.isFinite(move)) return `Loop ${t}: the numbers have grown past all bounds.`;
  let text;
  if (move > 0.05) text = `Loop ${t}: still making up its mind; this loop ${by}.`;
  else if (move > AT_REST) text = `Loop ${t}: closing in; this loop ${by}.`;
  else {
    text = `Loop ${t}: the curve has come to rest${dark ? ", on average" : ""}${t > most ? `, and it was never trained with more than ${most} loops` : ""}.`;
    if (dark) text += " Where the strip under the plane is coloured, it still moves.";
  }
  if (Number.isFinite(error)) {
    const ratio = errors[0] / error;
    if (ratio > 1.5) text += ` The error${where} is ${ratio > 9.5 ? Math.round(ratio) : ratio.toFixed(1)} times smaller than after the first loop.`;
    else if (ratio < 0.7) text += ` The error${where} is larger than after the first loop.`;
    const best = Math.min(...errors.slice(0, t));
    if (error > 1.3 * best) text += ` It was smallest after loop ${errors.indexOf(best) + 1}: not every loop helps.`;
  }
  return text;
}
