import { createHash } from 'node:crypto'
import { countTokens } from '#local/double/reply.ts'
import type { CacheUse } from './plan.ts'
import type { Call } from './rules.ts'

/** A part of a prompt; a breakpoint ends a prefix that the vendor caches. */
export type Block = { content: unknown; breakpoint: boolean }

/** Shortest prefix that is cached, in tokens. */
const SHORTEST = 1024
/** Blocks before a breakpoint in which an earlier prefix is found. */
const LOOK_BACK = 20

/** Prefixes of a lane, by the map of its reasoning, which lives as long. */
const prefixes = new WeakMap<object, Set<string>>()

/** Reads and writes the prompt cache of a lane: the longest known prefix before a breakpoint is read, the rest written. */
export function cacheUse(call: Call, blocks: readonly Block[]): CacheUse {
  const known = prefixes.get(call.issued) ?? new Set<string>()
  prefixes.set(call.issued, known)
  const sum = createHash('sha256')
  let tokens = 0
  const ends = blocks.map(({ content }) => {
    const text = JSON.stringify(content, (key, value) => (key === 'cache_control' ? undefined : value))
    sum.update(text)
    tokens += countTokens(text)
    return { prefix: `${call.model} ${sum.copy().digest('base64')}`, tokens }
  })
  const marks = blocks.flatMap(({ breakpoint }, index) =>
    breakpoint && ends[index]!.tokens >= SHORTEST ? [index] : [],
  )
  let cached = 0
  for (const mark of marks)
    for (let at = mark; at >= Math.max(0, mark - LOOK_BACK); at--)
      if (known.has(ends[at]!.prefix)) cached = Math.max(cached, ends[at]!.tokens)
  for (const mark of marks) known.add(ends[mark]!.prefix)
  const last = marks.at(-1)
  return { cached, written: last === undefined ? 0 : ends[last]!.tokens - cached }
}
