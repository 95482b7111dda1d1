/** Confidence of aggregated scores. */

/** Standard deviations that cover 95 % of a normal distribution. */
const Z = 1.959964

/** Returns the Wilson score interval of a pass rate; null for a total of 0. */
export function wilsonInterval(passed: number, total: number): { low: number; high: number; level: number } | null {
  if (total === 0) return null
  const share = passed / total
  const z2 = Z * Z
  const spread = 1 + z2 / total
  const centre = (share + z2 / (2 * total)) / spread
  const half = (Z * Math.sqrt((share * (1 - share)) / total + z2 / (4 * total * total))) / spread
  return { low: Math.max(0, centre - half), high: Math.min(1, centre + half), level: 0.95 }
}

/** Flips up to which the sum is exact; above it logarithms are used, accurate to ten digits. */
const MAX_EXACT_FLIPS = 2000

/**
 * Returns the p-value of the exact two-sided McNemar test: the probability of a split at least as uneven as `improved`
 * and `regressed` by chance.
 */
export function mcnemarTest(improved: number, regressed: number): number {
  const flips = improved + regressed
  const fewer = Math.min(improved, regressed)
  if (flips === 0 || improved === regressed) return 1
  return Math.min(1, flips <= MAX_EXACT_FLIPS ? exactTail(flips, fewer) : logTail(flips, fewer))
}

/** Returns 2 · Σ C(n, i) / 2^n for i up to k, computed with integers. */
export function exactTail(n: number, k: number): number {
  let term = 1n
  let sum = 1n
  for (let i = 1; i <= k; i++) {
    term = (term * BigInt(n - i + 1)) / BigInt(i)
    sum += term
  }
  return ratio(sum * 2n, n)
}

/** Returns an integer divided by 2^n, from its first 64 bits. */
function ratio(numerator: bigint, n: number): number {
  const excess = Math.max(0, numerator.toString(16).length * 4 - 64)
  return Number(numerator >> BigInt(excess)) * 2 ** (excess - n)
}

/** Returns the sum of exactTail for large numbers: the last term by its logarithm, the other terms relative to it. */
export function logTail(n: number, k: number): number {
  let share = 1
  let sum = 1
  for (let i = k; i > 0; i--) {
    share *= i / (n - i + 1)
    sum += share
    if (share < sum * 1e-18) break
  }
  const last = logFactorial(n) - logFactorial(k) - logFactorial(n - k) - n * Math.LN2
  return 2 * sum * Math.exp(last)
}

/** Returns ln n!, by Stirling's series for large n. */
function logFactorial(n: number): number {
  if (n < 256) {
    let log = 0
    for (let i = 2; i <= n; i++) log += Math.log(i)
    return log
  }
  const x = n + 1
  return (
    (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + 1 / (12 * x) - 1 / (360 * x ** 3) + 1 / (1260 * x ** 5)
  )
}
