import { z } from 'zod'
import type { RecordedFailure } from '#core/base/errors.ts'
import { countStatement, equalsAny, type Fragment, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { addExtraction } from '../generations/store.ts'
import { ExtractedFact } from './facts.ts'
import { type MemoryRuleRow, memoryRuleKind } from './model.ts'

/** Fields of a rule that are needed when a turn completes. */
const EnabledRule = z.object({
  project_id: z.string(),
  id: z.string(),
  on: z.string(),
  source_agent_ids: z.array(z.string()).nullable(),
  agent_id: z.string().nullable(),
  include_evaluations: z.boolean(),
})
export type EnabledRule = z.output<typeof EnabledRule>
const enabledRuleRow = sql.type(EnabledRule)

/** Lists the enabled rules of projects (index memory_rules_project). */
export const listEnabledRules = (db: Queryable, projectIds: readonly string[]): Promise<readonly EnabledRule[]> =>
  db.any(enabledRuleRow`
    select project_id, id, "on", source_agent_ids, agent_id, include_evaluations from memory_rules
    where ${equalsAny(sql.fragment`project_id`, projectIds)} and enabled order by id`)

/**
 * Returns the number of rules in a project, and blocks concurrent counts until the transaction ends (index
 * memory_rules_project).
 */
export const countRules = async (tx: Queryable, projectId: string): Promise<number> => {
  await tx.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended('memory rules ' || ${projectId}, 0))`)
  return tx.oneFirst(countStatement`select count(*) as count from memory_rules where project_id = ${projectId}`)
}

/** Lists the rules of a project, oldest first (index memory_rules_project). */
export const listMemoryRules = (db: Queryable, projectId: string): Promise<readonly MemoryRuleRow[]> =>
  db.any(memoryRuleKind.sql`
    select ${memoryRuleKind.columns} from memory_rules t where t.project_id = ${projectId} order by t.id`)

/**
 * Returns the statement part that inserts the firings of a turn under a condition. Only rules that still exist and are
 * enabled fire; they are locked against deletion.
 */
export const ruleFiringCte = (
  firings: readonly { id: string; memory_rule_id: string }[],
  generationId: string,
  guard: Fragment,
): Fragment => sql.fragment`
  insert into memory_rule_firings (id, project_id, memory_rule_id, generation_id)
  select f.id, r.project_id, r.id, ${generationId}
  from ${sql.unnest(
    firings.map(({ id, memory_rule_id }) => [id, memory_rule_id]),
    ['text', 'text'],
  )} as f (id, rule_id) join memory_rules r on r.id = f.rule_id
  where r.enabled and ${guard} for key share of r
  on conflict (memory_rule_id, generation_id) do nothing`

/** Columns of the work of a firing: the facts of the handler, and how many of them were written or failed. */
export const firingWorkColumns = { facts: z.array(ExtractedFact).nullable(), written: z.int() }
export type FiringWorkColumns = z.output<z.ZodObject<typeof firingWorkColumns>>

const RuleFiring = z.object({
  id: z.string(),
  project_id: z.string(),
  memory_rule_id: z.string(),
  generation_id: z.string(),
  state: z.enum(['queued', 'running', 'asked', 'done', 'failed']),
  failures: z.int(),
  handler_generation_id: z.string().nullable(),
})
export type RuleFiring = z.output<typeof RuleFiring>
const firingRow = sql.type(RuleFiring)

const firingColumns = sql.fragment`
  t.id, t.project_id, t.memory_rule_id, t.generation_id, t.state, t.failures, t.handler_generation_id`

/** A firing as a work item, which is its own entity and remains after it settles. */
export const firingEntity = { table: 'memory_rule_firings', columns: firingColumns, row: RuleFiring }

/** Locks and returns a firing whose handler turn is past its deadline, or null. */
export const lockOverdueFiring = (db: Queryable, id: string): Promise<RuleFiring | null> =>
  db.maybeOne(firingRow`
    select ${firingColumns} from memory_rule_firings t
    where t.id = ${id} and t.state = 'asked' and t.due_at <= now() for update of t`)

/** Locks and returns the firing that waits for a handler turn, or null (index memory_rule_firings_handler). */
export const lockFiringOfHandler = (db: Queryable, handlerId: string): Promise<RuleFiring | null> =>
  db.maybeOne(firingRow`
    select ${firingColumns} from memory_rule_firings t
    where t.handler_generation_id = ${handlerId} and t.state = 'asked' for update of t`)

/** Stores the facts of a handler turn and makes the firing claimable again. */
export const storeHandlerAnswer = (db: Queryable, id: string, facts: readonly ExtractedFact[]) =>
  db.query(voidStatement`
    update memory_rule_firings set state = 'queued', due_at = now(), facts = ${jsonb(facts)}, candidates = ${facts.length}
    where id = ${id} and state = 'asked'`)

/** Reschedules a firing after its handler turn failed. */
export const rescheduleHandler = (db: Queryable, id: string, delayMs: number) =>
  db.query(voidStatement`
    update memory_rule_firings set state = 'queued', due_at = now() + ${delayMs} * interval '1 ms', failures = failures + 1,
      handler_generation_id = null
    where id = ${id} and state = 'asked'`)

/** Sets a later due time of a firing. */
export const rescheduleFiring = (db: Queryable, id: string, delayMs: number) =>
  db.query(voidStatement`update memory_rule_firings set due_at = now() + ${delayMs} * interval '1 ms' where id = ${id}`)

const Settled = z.object({
  memory_rule_id: z.string(),
  generation_id: z.string(),
  candidates: z.int(),
  created: z.int(),
  superseded: z.int(),
  skipped: z.int(),
  failed: z.int(),
})
const settledRow = sql.type(Settled)

/**
 * Settles a firing that the caller has locked, and adds its counts to the turn under the id of its rule. Returns null
 * if it was settled.
 */
export async function settleFiringRow(
  db: Queryable,
  id: string,
  outcome: { error: RecordedFailure | null; recorded: boolean },
): Promise<z.output<typeof Settled> | null> {
  const firing = await db.maybeOne(settledRow`
    update memory_rule_firings set state = ${outcome.error ? 'failed' : 'done'}, facts = null, due_at = null, settled_at = now()
    where id = ${id} and state in ('queued', 'running', 'asked')
    returning memory_rule_id, generation_id, candidates, created, superseded, skipped, failed`)
  if (!firing || !outcome.recorded) return firing
  const { memory_rule_id, generation_id, ...counts } = firing
  const recorded = { [memory_rule_id]: { ...counts, ...(outcome.error ? { error: outcome.error } : {}) } }
  await addExtraction(db, generation_id, recorded)
  return firing
}

/**
 * Settles the firings of turns and erases their facts, without recording counts; workers that process one lose their
 * claim (index memory_rule_firings_generation).
 */
export const settleFiringsOfTurns = (db: Queryable, generationIds: readonly string[]) =>
  db.query(voidStatement`
    update memory_rule_firings set state = 'done', facts = null, due_at = null, settled_at = now()
    where generation_id = any(${sql.array([...generationIds], 'text')}) and state in ('queued', 'running', 'asked')`)

const failuresRow = sql.type(z.object({ failures: z.int() }))

/** Increments and returns the number of consecutive failed firings of a rule. */
export const countHandlerFailure = (db: Queryable, ruleId: string): Promise<number> =>
  db.oneFirst(failuresRow`update memory_rules set failures = failures + 1 where id = ${ruleId} returning failures`)

/** Resets the number of consecutive failed firings. */
export const resetFailures = (db: Queryable, ruleId: string) =>
  db.query(voidStatement`update memory_rules set failures = 0 where id = ${ruleId} and failures > 0`)

/** Deletes firings that settled before a time and returns their number (index memory_rule_firings_settled). */
export const deleteSettledRuleFirings = (db: Queryable, before: Date, limit: number): Promise<number> =>
  db.oneFirst(countStatement`
    with old as (
      delete from memory_rule_firings where id in (
        select id from memory_rule_firings where settled_at < ${before.toISOString()}::timestamptz limit ${limit})
      returning 1)
    select count(*) as count from old`)
