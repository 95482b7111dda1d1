import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { record } from '#core/api/record.ts'
import { sql } from '#core/db/sql.ts'

export const CHAIN_STATUSES = ['active', 'concluded', 'expired', 'budget_exhausted'] as const

/** Origin of the limit of a chain. */
export const LIMIT_SOURCES = ['agent', 'project', 'platform', 'stopped'] as const

export const Chain = record('Chain', {
  agent_id: z.string().describe('ID of the agent of the first turn; kept after the agent is deleted'),
  status: z
    .enum(CHAIN_STATUSES)
    .describe(
      '`active` — a turn, an approval or its follow-up is unsettled; `concluded` — none is; `expired` — the last approval expired; `budget_exhausted` — a further turn was refused',
    ),
  generation_count: z.int().describe('Number of turns at the last continuation, including the first'),
  limit: z.int().describe('Maximum number of turns at the last continuation'),
  limit_source: z.enum(LIMIT_SOURCES).describe('Origin of the limit; `stopped` after the stop operation'),
  last_generation_at: z.iso.datetime().describe('Creation time of the last turn'),
  stopped_at: z.iso.datetime().nullable().describe('Time of the stop operation; null if not stopped'),
})

/**
 * Whether chain `t` has an unsettled turn, a pending approval or an unsettled follow-up (indexes generations_chain and
 * approvals_generation).
 */
export const activeCondition = sql.fragment`exists (
  select from generations g where g.chain_id = t.id and (
    g.status in ('pending', 'in_progress', 'requires_action')
    or exists (
      select from approvals a left join approval_attempts f on f.approval_id = a.id
      where a.generation_id = g.id and (a.status = 'pending' or f.id is not null))))`

/**
 * Current status, derived on read: settling a turn writes nothing to its chain, so that two turns that settle
 * concurrently do not wait for each other.
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
