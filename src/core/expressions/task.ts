import { parseExactJson } from '../base/exact-json.ts'
import { runWithCpuLimit } from '../threads/cpu-limit.ts'
import { type EvaluationOutcome, type EvaluationRequest, evaluateFully } from './evaluate.ts'

/** Task of threads (core/threads) that evaluates expressions. */

/** Processor time limit, far above what the limits of an evaluation permit. */
const MAX_MS = 2000
/** Most memory of the parsed input; the rest of the heap is for values and their JSON. A thread that exceeds its heap while it parses would end the process. */
const MAX_MEMORY = 96 * 1024 * 1024

/** Expressions and root as JSON: parsing is faster than a structured clone. */
type ExpressionInput = Omit<EvaluationRequest, 'expressions' | 'root'> & { text: string }

/** Values as JSON. */
type ExpressionOutput = Omit<EvaluationOutcome, 'values'> & { text: string }

export function run({ text, ...rest }: ExpressionInput): ExpressionOutput {
  if (memoryOf(text) > MAX_MEMORY) return { spent: rest.spent, failed: 'takes too much memory to evaluate', text: '[]' }
  return runWithCpuLimit(MAX_MS, () => {
    const { values, ...outcome } = evaluateFully({ ...parseExactJson(text), ...rest })
    return { ...outcome, text: JSON.stringify(values) }
  })
}

/** Bytes of an object or array, of an entry of an object with its key, of an item, and of a character. */
const MEMORY = { container: 64, entry: 96, item: 16, character: 4 }

/** Returns an upper bound of the memory of JSON with its text. Counts the same characters within strings, too. */
function memoryOf(text: string): number {
  let bytes = text.length * MEMORY.character
  for (let index = 0; index < text.length; index++) {
    const character = text[index]
    if (character === '{' || character === '[') bytes += MEMORY.container
    else if (character === ':') bytes += MEMORY.entry
    else if (character === ',') bytes += MEMORY.item
  }
  return bytes
}
