/** Numbers that follow from a seed, so that what a test made of them can be made again. */
export type Random = {
  /** From 0 to below 1. */
  next(): number
  /** A whole number between two, both included. */
  between(from: number, to: number): number
  chance(probability: number): boolean
  pick<T>(items: readonly T[]): T
  /** `count` different items, in their order; all when there are fewer. */
  some<T>(items: readonly T[], count: number): T[]
  shuffled<T>(items: readonly T[]): T[]
}

/** Mulberry32. */
export function randomOf(seed: number): Random {
  let state = seed >>> 0
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  const between = (from: number, to: number) => from + Math.floor(next() * (to - from + 1))
  const shuffled = <T>(items: readonly T[]): T[] => {
    const left = [...items]
    return items.map(() => left.splice(between(0, left.length - 1), 1)[0])
  }
  return {
    next,
    between,
    chance: probability => next() < probability,
    pick: items => items[between(0, items.length - 1)],
    some(items, count) {
      const chosen = new Set(shuffled(items).slice(0, count))
      return items.filter(item => chosen.has(item))
    },
    shuffled,
  }
}
