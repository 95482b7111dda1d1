import { z } from 'zod'
import { listTargetOf, visibleRows } from '#core/api/access.ts'
import { MAX_PAGE_BYTES } from '#core/api/lists.ts'
import { itemOperation } from '#core/api/operation.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { workflowKind } from '../definition/model.ts'
import { nullableTime, Task, type TaskRow, taskKind } from './model.ts'
import { storedBytes, taskBytes } from './store.ts'

const MAX_TASKS_PER_STATE = 50

const BoardState = z
  .object({
    state: z.string(),
    declared: z.boolean().describe('Whether the current version of the workflow declares the state'),
    terminal: z.boolean().describe('Whether the state is terminal'),
    count: z.int().describe('Number of tasks in the state that are visible to the caller'),
    oldest_at: nullableTime.describe('Time of creation of the oldest of these tasks. Null without tasks.'),
    tasks: z.array(Task).describe('Newest tasks in the state. Fewer than per_state if the tasks are large.'),
  })
  .meta({ id: 'WorkflowBoardState' })

const Board = z
  .object({
    workflow_id: z.string(),
    version: z.int(),
    total: z.int(),
    states: z.array(BoardState).describe('States with their newest tasks'),
  })
  .meta({ id: 'WorkflowBoard' })

const stateCountRow = sql.type(z.object({ state: z.string(), count: z.int(), oldest_at: nullableTime }))

/**
 * Counts tasks by state: from the maintained counts (primary key) and the oldest task of each
 * state (tasks_workflow) if the caller can see all tasks, else from the rows (tasks_workflow).
 */
const countByState = (db: Queryable, workflowId: string, { rows, all }: ReturnType<typeof visibleRows>) =>
  db.any(
    all
      ? stateCountRow`
          select c.state, c.count, (
            select min(t.created_at) from tasks t where t.workflow_id = ${workflowId} and t.state = c.state) as oldest_at
          from (
            select state, sum(count)::bigint as count from task_state_counts where workflow_id = ${workflowId}
            group by state having sum(count) > 0) c`
      : stateCountRow`
          select t.state, count(*) as count, min(t.created_at) as oldest_at
          from tasks t where t.workflow_id = ${workflowId} and ${rows} group by t.state`,
  )

/**
 * Lists the newest tasks of each state within the page size limit, taking the newest of every state before the second
 * newest of any. Compressed sizes are checked before text sizes, which limits decompression. By tasks_workflow.
 */
const listNewest = (
  db: Queryable,
  workflowId: string,
  states: readonly string[],
  rows: ReturnType<typeof visibleRows>['rows'],
  limit: number,
): Promise<readonly TaskRow[]> =>
  states.length === 0
    ? Promise.resolve([])
    : db.any(taskKind.sql`
        with newest as materialized (
          select n.id, n.place, n.stored from unnest(${sql.array([...states], 'text')}) s (name)
          cross join lateral (
            select t.id, ${storedBytes} as stored, row_number() over (order by t.created_at desc, t.id desc) as place
            from tasks t where t.workflow_id = ${workflowId} and t.state = s.name and ${rows}
            order by t.created_at desc, t.id desc limit ${limit}) n
        ), stored as materialized (
          select id, place, sum(stored) over (order by place, id) - stored as before from newest
        ), sized as materialized (
          select t.id, s.place, ${taskBytes} as bytes from stored s join tasks t on t.id = s.id
          where s.before < ${MAX_PAGE_BYTES}::bigint
        ), shown as (
          select id, sum(bytes) over (order by place, id) - bytes as before from sized)
        select ${taskKind.columns} from shown s join tasks t on t.id = s.id where s.before < ${MAX_PAGE_BYTES}::bigint
        order by t.created_at desc, t.id desc`)

export const boardOperation = itemOperation(workflowKind, {
  id: 'getWorkflowBoard',
  method: 'get',
  path: '/workflows/{workflow_id}/board',
  summary: 'Get the board of a workflow',
  description:
    'Lists the declared states in order, then states of earlier versions that still contain tasks, each with its task count and newest tasks. Includes tasks that tasks:ListTasks allows. The tasks are limited to 16 MiB in total.',
  tag: 'Workflows',
  action: 'workflows:GetWorkflow',
  alsoActions: ['tasks:ListTasks'],
  query: z.object({
    per_state: z.coerce
      .number()
      .int()
      .min(1)
      .max(MAX_TASKS_PER_STATE)
      .default(20)
      .describe('Number of tasks per state. Default 20, at most 50.'),
  }),
  answers: { 200: Board },
  async run({ resource: workflow, db, caller, query }) {
    const { id, project_id, version } = workflow
    const visible = visibleRows(
      caller,
      { action: 'tasks:ListTasks', project: project_id, ...listTargetOf(taskKind) },
      { project: sql.fragment`t.project_id`, id: sql.fragment`t.id` },
    )
    const counts = new Map((await countByState(db, id, visible)).map(row => [row.state, row]))
    const tasks = Map.groupBy(
      await listNewest(db, id, [...counts.keys()], visible.rows, query.per_state),
      ({ state }) => state,
    )
    const declared = workflow.states.map(({ name, terminal }) => ({
      state: name,
      declared: true,
      terminal: terminal === true,
    }))
    const names = new Set(declared.map(({ state }) => state))
    const others = [...counts.keys()].filter(state => !names.has(state)).sort()
    const states = [...declared, ...others.map(state => ({ state, declared: false, terminal: false }))]
    return {
      workflow_id: id,
      version,
      total: [...counts.values()].reduce((sum, { count }) => sum + count, 0),
      states: states.map(each => ({
        ...each,
        count: counts.get(each.state)?.count ?? 0,
        oldest_at: counts.get(each.state)?.oldest_at ?? null,
        tasks: (tasks.get(each.state) ?? []).map(taskKind.present),
      })),
    }
  },
})
