import { RE2JS } from 're2js'

/** A compiled pattern as ajv uses it, by its text. `weight`: the memory it takes, in bytes, roughly. */
export type Pattern = { test(text: string): boolean; toString(): string; weight: number }

/** A pattern takes 7 KB, and 64 bytes an instruction of its program; measured. */
const PATTERN_BYTES = 7 * 1024
const INSTRUCTION_BYTES = 64

/**
 * The one place where a caller's regular expression is compiled. It runs on an engine that does not backtrack; with
 * `backtracking`, one that needs to (lookaround, backreferences, large repeats) is left to V8. Either way it runs within
 * the limit of what is being checked (limit.ts).
 * @throws Error for a pattern that JavaScript refuses, and without `backtracking` for one that needs it
 */
export function compilePattern(pattern: string, flags: string, { backtracking }: { backtracking: boolean }): Pattern {
  const native = new RegExp(pattern, flags)
  try {
    const linear = RE2JS.compile(RE2JS.translateRegExp(pattern))
    const weight = PATTERN_BYTES + INSTRUCTION_BYTES * linear.programSize()
    return { test: text => linear.test(text), toString: () => pattern, weight }
  } catch (error) {
    if (!backtracking) throw error
    return { test: text => native.test(text), toString: () => pattern, weight: PATTERN_BYTES }
  }
}
