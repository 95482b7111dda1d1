import type { Fact as StatedFact } from '../../memory/entries/write.ts'
import type { GenerationRow } from '../generations/model.ts'
import type { Fact } from './facts.ts'
import type { MemoryRuleRow } from './model.ts'

/** A fact of a turn as a rule states it to its store. */
export const statedBy = (
  rule: MemoryRuleRow,
  { id, agent_id, conversation_id }: GenerationRow,
  { content, tags }: Fact,
): StatedFact => ({
  memory_store_id: rule.memory_store_id,
  content,
  tags,
  source_type: conversation_id === null ? 'manual' : 'conversation',
  source_id: conversation_id,
  mechanism: 'rule',
  memory_rule_id: rule.id,
  generation_id: id,
  conversation_id,
  principal: { type: 'agent', id: agent_id },
})
