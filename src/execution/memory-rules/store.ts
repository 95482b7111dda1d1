import { z } from 'zod'
import type { RecordedFailure } from '../../core/api/errors.ts'
import {
  countStatement,
  equalsAny,
  type Fragment,
  jsonb,
  type Queryable,
  sql,
  voidStatement,
} from '../../core/db/sql.ts'
import { type WorkItemClaim, workItemTable } from '../../core/jobs/work-item.ts'
import { addExtraction } from '../generations/store.ts'
import { type LoadedRoute, loadedRoute, routeOf } from '../model-routes/store.ts'
import { ExtractedFact } from './facts.ts'
import { type MemoryRuleRow, memoryRuleKind } from './model.ts'

/** What the end of a turn has to know of a rule. */
const EnabledRule = z.object({
  project_id: z.string(),
  id: z.string(),
  on: z.string(),
  source_agent_ids: z.array(z.string()).nullable(),
  agent_id: z.string().nullable(),
})
export type EnabledRule = z.output<typeof EnabledRule>
const watching = sql.type(EnabledRule)

/** The enabled rules of projects. Index memory_rules_project. */
export const enabledRules = (db: Queryable, projectIds: readonly string[]): Promise<readonly EnabledRule[]> =>
  db.any(watching`
    select project_id, id, "on", source_agent_ids, agent_id from memory_rules
    where ${equalsAny(sql.fragment`project_id`, projectIds)} and enabled order by id`)

/** How many rules a project has; until the transaction ends nobody else counts them. Index memory_rules_project. */
export const countRules = async (tx: Queryable, projectId: string): Promise<number> => {
  await tx.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended('memory rules ' || ${projectId}, 0))`)
  return tx.oneFirst(countStatement`select count(*) as count from memory_rules where project_id = ${projectId}`)
}

/** The rules of a project, oldest first. Index memory_rules_project. */
export const listMemoryRules = (db: Queryable, projectId: string): Promise<readonly MemoryRuleRow[]> =>
  db.any(memoryRuleKind.sql`
    select ${memoryRuleKind.columns} from memory_rules t where t.project_id = ${projectId} order by t.id`)

/**
 * The part of a statement that makes the firings of rules by a turn, where a condition holds: of a rule that is there and
 * enabled still, and keeps it from being deleted meanwhile.
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

const row = {
  memory_rule_id: z.string(),
  facts: z.array(ExtractedFact).nullable(),
  /** Of them so many have been written, or could not be. */
  written: z.int(),
}

/** Firings as attempts: each is one of its turn, and stays when it has settled. */
export const ruleFiringWork = workItemTable({
  table: 'memory_rule_firings',
  entity: 'generation_id',
  owner: 'generations',
  row,
})
export type RuleFiringClaim = WorkItemClaim & z.output<z.ZodObject<typeof row>>

const RuleFiring = z.object({
  id: z.string(),
  project_id: z.string(),
  memory_rule_id: z.string(),
  generation_id: z.string(),
  state: z.enum(['queued', 'running', 'asked', 'done', 'failed']),
  failures: z.int(),
  handler_generation_id: z.string().nullable(),
  is_due: z.boolean(),
  paused: z.boolean(),
})
export type RuleFiring = z.output<typeof RuleFiring>
const firing = sql.type(RuleFiring)

const firingColumns = sql.fragment`
  f.id, f.project_id, f.memory_rule_id, f.generation_id, f.state, f.failures, f.handler_generation_id, coalesce(f.due_at <= now(), false) as is_due,
  (select p.paused_at is not null from projects p where p.id = f.project_id) as paused`

/** A firing under its lock; null when it is gone. */
export const lockFiring = (db: Queryable, id: string): Promise<RuleFiring | null> =>
  db.maybeOne(firing`select ${firingColumns} from memory_rule_firings f where f.id = ${id} for update of f`)

/** The firing that waits for a turn, under its lock; null without one. By memory_rule_firings_handler. */
export const lockFiringOfHandler = (db: Queryable, handlerId: string): Promise<RuleFiring | null> =>
  db.maybeOne(firing`
    select ${firingColumns} from memory_rule_firings f
    where f.handler_generation_id = ${handlerId} and f.state = 'asked' for update of f`)

/** Writes what a handler said: a firing that waited for it can be claimed again. */
export const storeHandlerAnswer = (db: Queryable, id: string, facts: readonly ExtractedFact[]) =>
  db.query(voidStatement`
    update memory_rule_firings set state = 'queued', due_at = now(), facts = ${jsonb(facts)}, candidates = ${facts.length}
    where id = ${id} and state = 'asked'`)

/** Lets a firing that waited for its handler try again after a delay. */
export const rescheduleHandler = (db: Queryable, id: string, delayMs: number) =>
  db.query(voidStatement`
    update memory_rule_firings set state = 'queued', due_at = now() + ${delayMs} * interval '1 ms', failures = failures + 1,
      handler_generation_id = null
    where id = ${id} and state = 'asked'`)

/** Looks at a firing again later. */
export const recheckLater = (db: Queryable, id: string, delayMs: number) =>
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
const settled = sql.type(Settled)

/**
 * Settles a firing whose lock the caller holds, and records its counts on the turn under the id of its rule, beside those of
 * others; with nothing to record it settles without a word. Null for one that has settled.
 */
export async function settleRow(
  db: Queryable,
  id: string,
  end: { error: RecordedFailure | null; recorded: boolean },
): Promise<z.output<typeof Settled> | null> {
  const row = await db.maybeOne(settled`
    update memory_rule_firings set state = ${end.error ? 'failed' : 'done'}, facts = null, due_at = null, settled_at = now()
    where id = ${id} and state in ('queued', 'running', 'asked')
    returning memory_rule_id, generation_id, candidates, created, superseded, skipped, failed`)
  if (!row || !end.recorded) return row
  const { memory_rule_id, generation_id, ...counts } = row
  const recorded = { [memory_rule_id]: { ...counts, ...(end.error ? { error: end.error } : {}) } }
  await addExtraction(db, generation_id, recorded)
  return row
}

/** Ends the firings by turns without a word, with what handlers said; whoever works on one has lost it. By memory_rule_firings_generation. */
export const endFirings = (db: Queryable, generationIds: readonly string[]) =>
  db.query(voidStatement`
    update memory_rule_firings set state = 'done', facts = null, due_at = null, settled_at = now()
    where generation_id = any(${sql.array([...generationIds], 'text')}) and state in ('queued', 'running', 'asked')`)

const counted = sql.type(z.object({ failures: z.int() }))

/** Counts a failed firing of a rule; returns how many there were one after the other. */
export const countHandlerFailure = (db: Queryable, ruleId: string): Promise<number> =>
  db.oneFirst(counted`update memory_rules set failures = failures + 1 where id = ${ruleId} returning failures`)

/** A firing went well. */
export const resetFailures = (db: Queryable, ruleId: string) =>
  db.query(voidStatement`update memory_rules set failures = 0 where id = ${ruleId} and failures > 0`)

const route = sql.type(z.object({ route: loadedRoute }))

/** The route that calls of a consumer go by; null without one. */
export const findRoute = (db: Queryable, consumer: Parameters<typeof routeOf>[0]): Promise<LoadedRoute | null> =>
  db.oneFirst(route`select ${routeOf(consumer)} as route`)

/** Deletes firings that settled before a time; returns how many went. By memory_rule_firings_settled. */
export const deleteSettled = (db: Queryable, before: Date, limit: number): Promise<number> =>
  db.oneFirst(countStatement`
    with old as (
      delete from memory_rule_firings where id in (
        select id from memory_rule_firings where settled_at < ${before.toISOString()}::timestamptz limit ${limit})
      returning 1)
    select count(*) as count from old`)
