import type { SubmittedFact as StatedFact } from '#memory/entries/write.ts'
import type { GenerationRow } from '../generations/model.ts'
import { factProvenance } from '../generations/tools/write-memory.ts'
import type { ExtractedFact } from './facts.ts'
import type { MemoryRuleRow } from './model.ts'

/** Returns a fact of a turn as a rule submits it to its store. */
export const factFromTurn = (
  { id, memory_store_id }: MemoryRuleRow,
  turn: GenerationRow,
  { content, tags }: ExtractedFact,
): StatedFact => ({ memory_store_id, content, tags, mechanism: 'rule', memory_rule_id: id, ...factProvenance(turn) })
