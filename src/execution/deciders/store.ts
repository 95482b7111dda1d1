import { z } from 'zod'
import { versionArchive } from '../../core/api/version-archive.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { type WorkItemClaim, workItemTable } from '../../core/jobs/work-item.ts'
import { type DeciderRow, DeciderVersion, type DecisionRow, deciderKind, decisionKind } from './model.ts'

/** Every set of questions that deciders have had. */
export const deciderVersions = versionArchive({
  table: 'decider_versions',
  owner: 'decider_id',
  prefix: 'dcd_ver',
  record: DeciderVersion,
})

/** The deciders of a project, oldest first. By deciders_project. */
export const decidersOf = (db: Queryable, projectId: string): Promise<readonly DeciderRow[]> =>
  db.any(deciderKind.sql`
    select ${deciderKind.columns} from deciders t where t.project_id = ${projectId} order by t.id`)

/** What is asked again before a decision is made. */
export type Permission = { action: string; kind: string; id: string }

/** In whose name a decision is made. */
const row = {
  principal: z.custom<PrincipalRecord>(),
  permission: z.custom<Permission>(),
  /** The tool may have been called by an earlier claim. */
  called: z.boolean(),
}

/** Attempts at decisions that wait for a worker, and at those whose tool is called. */
export const decisionAttempts = workItemTable({
  table: 'decision_attempts',
  entity: 'decision_id',
  owner: 'decisions',
  row,
})
const calling = sql.type(z.object({ called: z.boolean() }))

/** Whether a worker may have called the tool of a decision. By the primary key. */
export const hasCalled = async (db: Queryable, decisionId: string): Promise<boolean> =>
  (await db.maybeOneFirst(calling`select called from decision_attempts where decision_id = ${decisionId}`)) === true

export type DecisionClaim = WorkItemClaim & z.output<z.ZodObject<typeof row>>

/** Where what is decided about is held. */
export type ContentMode = 'full' | 'none'

const inputTable = (mode: ContentMode) =>
  sql.identifier([mode === 'none' ? 'decision_inputs_unlogged' : 'decision_inputs'])

/** The attempt at a new decision, with its sealed input. */
export const insertDecisionWork = (
  db: Queryable,
  made: {
    decision_id: string
    id: string
    principal: PrincipalRecord
    permission: Permission
    mode: ContentMode
    sealed: string
  },
) =>
  db.query(voidStatement`
    with held as (
      insert into ${inputTable(made.mode)} (decision_id, sealed) values (${made.decision_id}, ${made.sealed}))
    insert into decision_attempts (decision_id, id, principal, permission)
    values (${made.decision_id}, ${made.id}, ${jsonb(made.principal)}, ${jsonb(made.permission)})`)

const Held = z.object({
  principal: row.principal,
  permission: row.permission,
  /** Null when a crash of the database lost it. */
  sealed: z.string().nullable(),
  paused: z.boolean(),
})
const held = sql.type(Held)

/** What an attempt that has not ended works on, and whether its project is paused. By primary keys. */
export const findClaimed = (db: Queryable, decisionId: string): Promise<z.output<typeof Held> | null> =>
  db.maybeOne(held`
    select a.principal, a.permission, coalesce(i.sealed, u.sealed) as sealed, p.paused_at is not null as paused
    from decision_attempts a join decisions d on d.id = a.decision_id join projects p on p.id = d.project_id
    left join decision_inputs i on i.decision_id = a.decision_id
    left join decision_inputs_unlogged u on u.decision_id = a.decision_id
    where a.decision_id = ${decisionId}`)

/** Ends the attempt at a decision, and erases what it is about. */
export const endAttempt = (db: Queryable, decisionId: string) =>
  db.query(voidStatement`
    with erased as (delete from decision_inputs where decision_id = ${decisionId}),
    lost as (delete from decision_inputs_unlogged where decision_id = ${decisionId})
    delete from decision_attempts where decision_id = ${decisionId}`)

/** Settles a decision that has not settled; null for one that has, or is gone. */
export const settleDecisionRow = (
  db: Queryable,
  id: string,
  end: Pick<DecisionRow, 'status' | 'answers' | 'error'>,
): Promise<DecisionRow | null> =>
  db.maybeOne(decisionKind.sql`
    update decisions t set status = ${end.status}, answers = ${end.answers && JSON.stringify(end.answers)},
      error = ${jsonb(end.error)}, updated_at = now()
    where t.id = ${id} and t.status in ('queued', 'running') returning ${decisionKind.columns}`)

/** The decision that a turn makes. By decisions_generation. */
export const decisionOfTurn = (db: Queryable, generationId: string): Promise<DecisionRow | null> =>
  db.maybeOne(decisionKind.sql`
    select ${decisionKind.columns} from decisions t where t.generation_id = ${generationId}`)

/**
 * Erases what turns decided: answers, failures, and the questions of inline decisions. Returns the decisions. By
 * decisions_generation.
 */
export const eraseDecisionTurns = (db: Queryable, generationIds: readonly string[]): Promise<readonly string[]> =>
  eraseWhere(db, sql.fragment`generation_id = any(${sql.array([...generationIds], 'text')})`)

/** The same for decisions by their ids that have ended, such as those of tools, which have no turn. */
export const eraseSettled = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  eraseWhere(db, sql.fragment`id = any(${sql.array([...ids], 'text')}) and status <> 'running'`)

const eraseWhere = (db: Queryable, condition: Fragment): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update decisions set answers = null, error = null, metadata = null, updated_at = now(),
      asked = case when decider_id is null then '[]' else asked end
    where ${condition} returning id`)

/** Decisions whose turn was deleted while it ran. By decisions_asking, which has those whose agent is asked. */
export const listOrphanedDecisions = (db: Queryable, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select d.id from decisions d
    where d.status = 'running' and d.generation_id is not null
      and not exists (select from generations g where g.id = d.generation_id)
    order by d.created_at, d.id limit ${limit}`)
