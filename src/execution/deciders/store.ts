import { z } from 'zod'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { type DeciderRow, type DecisionRow, deciderKind, decisionKind } from './model.ts'

/** Lists the deciders of a project, oldest first (index deciders_project). */
export const listProjectDeciders = (db: Queryable, projectId: string): Promise<readonly DeciderRow[]> =>
  db.any(deciderKind.sql`
    select ${deciderKind.columns} from deciders t where t.project_id = ${projectId} order by t.id`)

/** Permission that is checked again before a decision is made. */
export type Permission = { action: string; kind: string; id: string }

/** Columns of the work of a decision: the principal it is made for, and whether its tool may have been called. */
export const decisionColumns = {
  principal: z.custom<PrincipalRecord>(),
  permission: z.custom<Permission>(),
  called: z.boolean(),
}
export type DecisionColumns = z.output<z.ZodObject<typeof decisionColumns>>

/** Content mode of a decision, which determines the table of its input. */
export type ContentMode = 'full' | 'none'

const inputTable = (mode: ContentMode) =>
  sql.identifier([mode === 'none' ? 'decision_inputs_unlogged' : 'decision_inputs'])

/** Inserts the work item of a decision with its sealed input. */
export const insertDecisionWork = (
  db: Queryable,
  item: {
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
      insert into ${inputTable(item.mode)} (decision_id, sealed) values (${item.decision_id}, ${item.sealed}))
    insert into decision_attempts (decision_id, id, principal, permission)
    values (${item.decision_id}, ${item.id}, ${jsonb(item.principal)}, ${jsonb(item.permission)})`)

const DecisionWork = z.object({
  principal: decisionColumns.principal,
  permission: decisionColumns.permission,
  /** Null if a database crash lost it. */
  sealed: z.string().nullable(),
  paused: z.boolean(),
})
const decisionWorkRow = sql.type(DecisionWork)
const sealedRow = sql.type(DecisionWork.pick({ sealed: true }))

const inputs = sql.fragment`
  left join decision_inputs i on i.decision_id = d.id left join decision_inputs_unlogged u on u.decision_id = d.id`

/** Returns the input and principal of an unsettled decision, and whether its project is paused. Uses primary keys. */
export const findDecisionWork = (db: Queryable, decisionId: string): Promise<z.output<typeof DecisionWork> | null> =>
  db.maybeOne(decisionWorkRow`
    select a.principal, a.permission, coalesce(i.sealed, u.sealed) as sealed, p.paused_at is not null as paused
    from decision_attempts a join decisions d on d.id = a.decision_id join projects p on p.id = d.project_id ${inputs}
    where a.decision_id = ${decisionId}`)

/** Returns the sealed input of a decision; null if a database crash lost it. Uses primary keys. */
export const findSealedInput = (db: Queryable, decisionId: string): Promise<string | null> =>
  db.oneFirst(sealedRow`
    select coalesce(i.sealed, u.sealed) as sealed from decisions d ${inputs} where d.id = ${decisionId}`)

/** Deletes the work item and the input of a decision. */
export const deleteDecisionWork = (db: Queryable, decisionId: string) =>
  db.query(voidStatement`
    with erased as (delete from decision_inputs where decision_id = ${decisionId}),
    lost as (delete from decision_inputs_unlogged where decision_id = ${decisionId})
    delete from decision_attempts where decision_id = ${decisionId}`)

/** Settles a decision and returns it; null if it was settled or deleted. */
export const settleDecisionRow = (
  db: Queryable,
  id: string,
  end: Pick<DecisionRow, 'status' | 'answers' | 'error'>,
): Promise<DecisionRow | null> =>
  db.maybeOne(decisionKind.sql`
    update decisions t set status = ${end.status}, answers = ${end.answers && JSON.stringify(end.answers)},
      error = ${jsonb(end.error)}, updated_at = now()
    where t.id = ${id} and t.status in ('queued', 'running') returning ${decisionKind.columns}`)

/** Returns the decision of a turn, or null (index decisions_generation). */
export const findDecisionOfTurn = (db: Queryable, generationId: string): Promise<DecisionRow | null> =>
  db.maybeOne(decisionKind.sql`
    select ${decisionKind.columns} from decisions t where t.generation_id = ${generationId}`)

/**
 * Erases the answers, failures and inline questions of decisions made by turns, and returns their ids (index
 * decisions_generation).
 */
export const eraseDecisionTurns = (db: Queryable, generationIds: readonly string[]): Promise<readonly string[]> =>
  eraseWhere(db, sql.fragment`generation_id = any(${sql.array([...generationIds], 'text')})`)

/** Erases settled decisions by id, such as decisions of tools, which have no turn. */
export const eraseSettledDecisions = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  eraseWhere(db, sql.fragment`id = any(${sql.array([...ids], 'text')}) and status <> 'running'`)

const eraseWhere = (db: Queryable, condition: Fragment): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update decisions set answers = null, error = null, metadata = null, updated_at = now(),
      asked = case when decider_id is null then '[]' else asked end
    where ${condition} returning id`)

/**
 * Lists running decisions whose turn was deleted. The index decisions_asking contains decisions that wait for an agent.
 */
export const listOrphanedDecisions = (db: Queryable, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select d.id from decisions d
    where d.status = 'running' and d.generation_id is not null
      and not exists (select from generations g where g.id = d.generation_id)
    order by d.created_at, d.id limit ${limit}`)
