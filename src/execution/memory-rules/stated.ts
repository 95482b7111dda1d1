import type { Fact as StatedFact } from '../../memory/entries/write.ts'
import type { GenerationRow } from '../generations/model.ts'
import { statedIn } from '../generations/write-memory.ts'
import type { Fact } from './facts.ts'
import type { MemoryRuleRow } from './model.ts'

/** A fact of a turn as a rule states it to its store. */
export const statedBy = (
  { id, memory_store_id }: MemoryRuleRow,
  turn: GenerationRow,
  { content, tags }: Fact,
): StatedFact => ({ memory_store_id, content, tags, mechanism: 'rule', memory_rule_id: id, ...statedIn(turn) })
