import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '../db/sql.ts'
import type { Queue } from '../queues/queue.ts'
import { hasMessage } from './message-claims.ts'

/** Reference to a work item. */
export type WorkRef = { entity: string; id: string }

/** A claim on a work item. `claims` is the fence: it grows with each claim. */
export type WorkClaim = WorkRef & { claims: number; failures: number; losses: number }

/** Owner of a work item: a kind, or any table with `id` and `project_id`. `columns` select from the alias `t`. */
export type WorkEntity<Row> = { table: string; columns: Fragment; row: z.ZodType<Row> }

/**
 * Milliseconds after which an item is stalled: since it was due, if no worker has claimed it, or since the claim and the last
 * sign of its message.
 */
export type StallLimits = { queuedMs: number; silentMs: number }

/** Position of an item in the order of due items. */
export type DueCursor = { due_at: string; id: string }

/** Items of a page that are stalled or have no message; the position of the next page, null after the last one. */
export type DuePage = { items: readonly DueItem[]; next: DueCursor | null }

/** An overdue item that is stalled or has no message. */
export type DueItem = WorkRef & { project_id: string; stalled: boolean }

export type WorkTable<Row, Columns> = {
  /** Claims an item that is queued, or running without a worker, and locks its entity; null for any other item. */
  claim(db: Queryable, ref: WorkRef): Promise<{ claim: WorkClaim & Columns; entity: Row } | null>
  /** Locks the entity and the item of a claim and returns the entity; null if the claim is lost. */
  lock(db: Queryable, claim: WorkClaim): Promise<Row | null>
  /** Locks like `lock` and deletes the item, unless the work keeps the rows of settled items. */
  remove(db: Queryable, claim: WorkClaim): Promise<Row | null>
  /** Whether a claim is neither lost nor ended. */
  isCurrent(db: Queryable, claim: WorkClaim): Promise<boolean>
  /** Updates columns of a claimed item. False if the claim is lost. */
  set(db: Queryable, claim: WorkClaim, assignments: Fragment): Promise<boolean>
  /** Requeues a claimed item, due after `delayMs`; `failed` counts a failure. False if the claim is lost. */
  requeue(db: Queryable, claim: WorkClaim, options: { delayMs: number; failed: boolean }): Promise<boolean>
  /** Whether the item of an entity is stalled; null without an item. */
  isStalled(db: Queryable, entity: string, limits: StallLimits): Promise<boolean | null>
  /** Locks the entity and deletes its item if it is stalled; null otherwise. */
  removeStalled(
    db: Queryable,
    entity: string,
    limits: StallLimits,
  ): Promise<{ claim: WorkClaim & Columns; entity: Row; state: string } | null>
  /** Reads a page of overdue items, oldest first. By the index on `due_at`; each item costs a lookup of its message. */
  listDue(
    db: Queryable,
    limits: StallLimits | null,
    page: {
      lateSeconds: number
      /** Null for all projects. */
      projectId: string | null
      after: DueCursor | null
      scan: number
    },
  ): Promise<DuePage>
}

const interval = (ms: number): Fragment => sql.fragment`${ms} * interval '1 ms'`

/**
 * Returns the statements of a table of work items. Its columns: `id`, the entity (unique), `state` (`queued`, `running`, and
 * wait states of the kind), `due_at` (when a queued item is due, when a running item was claimed; indexed), `claims`,
 * `losses` (claims whose worker was lost), `failures`, and the columns of the kind.
 */
export function workTable<Row, Columns>(
  queue: Queue<any>,
  declaration: {
    entity: WorkEntity<Row>
    table: string
    entityColumn: string
    columns: z.ZodRawShape
    begin?: Fragment
    pausable: boolean
    waitStates: readonly string[]
    keepsRow: boolean
    locksEntity: boolean
  },
): WorkTable<Row, Columns> {
  const { entity, begin, pausable, waitStates, keepsRow, locksEntity } = declaration
  const table = sql.identifier([declaration.table])
  const owner = sql.identifier([entity.table])
  const column = sql.identifier([declaration.entityColumn])
  // An item that is its own entity is locked only once.
  const isOwnEntity = declaration.table === entity.table
  const lock = locksEntity ? sql.fragment`for update of t` : sql.fragment``
  const claimColumns = ['claims', 'failures', 'losses', ...Object.keys(declaration.columns)]
  const claimShape = { entity: z.string(), id: z.string(), claims: z.int(), failures: z.int(), losses: z.int() }
  const claim = z.object({ ...claimShape, ...declaration.columns })
  const rowShape = (entity.row as z.ZodObject).shape
  const claimed = sql.type(z.object({ ...rowShape, claim }))
  const ended = sql.type(z.object({ ...rowShape, claim, work_state: z.string() }))
  const entityRow = sql.type(entity.row)
  const stalledRow = sql.type(z.object({ stalled: z.boolean() }))
  const dueRow = sql.type(
    z.object({
      entity: z.string(),
      id: z.string(),
      project_id: z.string(),
      due_at: z.string(),
      stalled: z.boolean(),
      is_open: z.boolean(),
      is_last: z.boolean(),
    }),
  )

  const isClaimed = ({ entity: id, ...claim }: WorkClaim): Fragment =>
    sql.fragment`a.${column} = ${id} and a.id = ${claim.id} and a.claims = ${claim.claims} and a.state = 'running'`
  const isUnpaused = (entity: Fragment): Fragment =>
    pausable
      ? sql.fragment`and (a.state <> 'queued' or not exists (
          select from projects p where p.id = ${entity}.project_id and p.paused_at is not null))`
      : sql.fragment``
  const isSilent = (ms: number): Fragment => sql.fragment`
    a.due_at < now() - ${interval(ms)} and not ${hasMessage(queue.name, sql.fragment`a.id`, { aliveWithinMs: ms })}`
  const isStalled = ({ queuedMs, silentMs }: StallLimits): Fragment => sql.fragment`(
    (a.state = 'running' and ${isSilent(silentMs)})
    or (a.state = 'queued' and a.due_at < now() - ${interval(queuedMs)})
    or (a.state = any(${sql.array([...waitStates], 'text')}) and a.due_at < now()))`
  const hasUpdated = async (db: Queryable, change: Fragment): Promise<boolean> =>
    (await db.query(voidStatement`${change}`)).rowCount === 1
  const set: WorkTable<Row, Columns>['set'] = (db, claim, assignments) =>
    hasUpdated(db, sql.fragment`update ${table} a set ${assignments} where ${isClaimed(claim)}`)
  const locked = (id: string): Fragment =>
    sql.fragment`locked as materialized (select ${entity.columns} from ${owner} t where t.id = ${id} ${lock})`
  const returned = sql.join(
    claimColumns.map(name => sql.fragment`a.${sql.identifier([name])}`),
    sql.fragment`, `,
  )

  return {
    async claim(db, ref) {
      const row = (await db.maybeOne(claimed`
        with ${locked(ref.entity)},
        claimed as (
          update ${table} a set state = 'running', claims = a.claims + 1, due_at = now(),
            losses = a.losses + (a.state = 'running')::integer
          from locked l
          where a.${column} = l.id and a.id = ${ref.id}
            and a.state in ('queued', 'running') ${isUnpaused(sql.fragment`l`)}
          returning a.${column} as entity, a.id, ${returned}),
        begun as (${
          begin
            ? sql.fragment`update ${owner} t set ${begin} from claimed c where t.id = c.entity returning ${entity.columns}`
            : sql.fragment`select l.* from locked l, claimed`
        })
        select b.*, to_json(c) as claim from begun b, claimed c`)) as Row & { claim: WorkClaim & Columns }
      if (!row) return null
      const { claim, ...rest } = row
      return { claim, entity: rest as Row }
    },
    lock: (db, claim) =>
      db.maybeOne(
        isOwnEntity
          ? entityRow`select ${entity.columns} from ${owner} t where t.id in (
              select a.id from ${table} a where ${isClaimed(claim)} for update)`
          : entityRow`
              with ${locked(claim.entity)}
              select l.* from locked l join ${table} a on a.${column} = l.id where ${isClaimed(claim)} for update of a`,
      ),
    remove(db, claim) {
      if (keepsRow) return this.lock(db, claim)
      return db.maybeOne(entityRow`
        with ${locked(claim.entity)},
        ended as (delete from ${table} a using locked l where a.${column} = l.id and ${isClaimed(claim)} returning a.id)
        select l.* from locked l, ended`)
    },
    isCurrent: async (db, claim) =>
      (await db.query(voidStatement`select from ${table} a where ${isClaimed(claim)}`)).rowCount === 1,
    set,
    requeue: (db, claim, { delayMs, failed }) =>
      set(
        db,
        claim,
        sql.fragment`state = 'queued', due_at = now() + ${interval(delayMs)}, failures = a.failures + ${failed ? 1 : 0}`,
      ),
    isStalled: (db, id, limits) =>
      db.maybeOneFirst(stalledRow`select ${isStalled(limits)} as stalled from ${table} a where a.${column} = ${id}`),
    async removeStalled(db, id, limits) {
      const row = (await db.maybeOne(ended`
        with ${locked(id)},
        ended as (
          delete from ${table} a using locked l where a.${column} = l.id and ${isStalled(limits)}
          returning a.state, a.${column} as entity, a.id, ${returned})
        select l.*, to_json(e) as claim, e.state as work_state from locked l, ended e`)) as
        | (Row & { claim: WorkClaim & Columns; work_state: string })
        | null
      if (!row) return null
      const { claim, work_state, ...rest } = row
      return { claim, entity: rest as Row, state: work_state }
    },
    async listDue(db, limits, { lateSeconds, projectId, after, scan }) {
      const rows = await db.any(dueRow`
        select * from (
          select d.*, d.stalled or not ${hasMessage(queue.name, sql.fragment`d.id`)} as is_open from (
            select a.${column} as entity, a.id, t.project_id, a.due_at, s.stalled,
              row_number() over (order by a.due_at, a.id) = ${scan} as is_last
            from ${table} a join ${owner} t on t.id = a.${column}
              cross join lateral (select ${limits ? isStalled(limits) : sql.fragment`false`} as stalled) s
            where a.due_at < now() - ${lateSeconds} * interval '1 s'
              and a.state = any(${sql.array(['queued', 'running', ...waitStates], 'text')}) ${isUnpaused(sql.fragment`t`)}
              ${projectId === null ? sql.fragment`` : sql.fragment`and t.project_id = ${projectId}`}
              ${after ? sql.fragment`and (a.due_at, a.id) > (${after.due_at}::timestamptz, ${after.id})` : sql.fragment``}
            order by a.due_at, a.id limit ${scan}) d) e
        where e.is_open or e.is_last`)
      return { items: rows.filter(row => row.is_open), next: rows.find(row => row.is_last) ?? null }
    },
  }
}
