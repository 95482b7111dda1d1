import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'

export const CHAIN_STATUSES = ['active', 'concluded', 'expired', 'budget_exhausted'] as const

/** Who sets the ceiling of a chain. */
export const LIMIT_SOURCES = ['agent', 'project', 'platform', 'stopped'] as const

export const Chain = record('Chain', {
  agent_id: z.string().describe('Agent of the first turn, whatever has become of it'),
  status: z
    .enum(CHAIN_STATUSES)
    .describe(
      '`active` while a turn of it, or an approval that one waits for, is under way; `concluded` once none is; `expired` when the last approval expired; `budget_exhausted` when a further turn was refused',
    ),
  generation_count: z.int().describe('Turns of the chain at its last continuation, the first one included'),
  limit: z.int().describe('Most turns that it was allowed at its last continuation'),
  limit_source: z.enum(LIMIT_SOURCES).describe('Who set the limit; `stopped` when it was stopped'),
  last_generation_at: z.iso.datetime().describe('When its last turn was made'),
  stopped_at: z.iso.datetime().nullable().describe('When it was stopped'),
})

/**
 * Whether something of a chain `t` is under way: a turn that is not at its end, an approval that waits for a person, or
 * what follows from one. By generations_chain and approvals_generation.
 */
export const activeCondition = sql.fragment`exists (
  select from generations g where g.chain_id = t.id and (
    g.status in ('pending', 'in_progress', 'requires_action')
    or exists (
      select from approvals a left join approval_attempts f on f.approval_id = a.id
      where a.generation_id = g.id and (a.status = 'pending' or f.id is not null))))`

/**
 * The status in force. That nothing is under way any more is seen when it is asked for: whoever ends a turn writes nothing of
 * its chain, and two that end at once need not wait for each other.
 */
export const chainStatus = sql.fragment`case when t.status = 'active' and not ${activeCondition} then 'concluded' else t.status end`

export const chainKind = kind({
  name: 'chain',
  prefix: 'chain',
  table: 'chains',
  notFound: 'CHAIN_NOT_FOUND',
  missing: 'CHAIN_NOT_FOUND',
  counted: false,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Chain,
  hidden: { root_generation_id: z.string() },
  computed: { status: chainStatus },
})

export type ChainRow = z.output<typeof chainKind.row>
