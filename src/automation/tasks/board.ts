import { z } from 'zod'
import { MAX_PAGE_BYTES } from '../../core/api/lists.ts'
import { itemOperation } from '../../core/api/operation.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { listTargetOf, visibleRows } from '../../core/iam/access.ts'
import { workflowKind } from '../workflows/model.ts'
import { Task, type TaskRow, taskKind } from './model.ts'
import { storedBytes, taskBytes } from './store.ts'

/** What is to be seen of a workflow at once: how many tasks are in each state, and the newest of them. */

const MOST = 50

const BoardState = z
  .object({
    state: z.string(),
    declared: z.boolean().describe('Whether the workflow has the state today; tasks may be in one that it had'),
    terminal: z.boolean().describe('Whether tasks end here'),
    count: z.int().describe('Tasks in the state that the caller may see'),
    tasks: z.array(Task).describe('The newest of them, fewer where they are large'),
  })
  .meta({ id: 'WorkflowBoardState' })

const Board = z
  .object({
    workflow_id: z.string(),
    version: z.int(),
    total: z.int(),
    states: z.array(BoardState).describe('States, with their tasks'),
  })
  .meta({ id: 'WorkflowBoard' })

const counted = sql.type(z.object({ state: z.string(), count: z.int() }))

/** Tasks by state: as kept, or where the caller may not see all of them as counted. By the primary key, or tasks_workflow. */
const countsOf = (db: Queryable, workflowId: string, { rows, all }: ReturnType<typeof visibleRows>) =>
  db.any(
    all
      ? counted`
          select state, sum(count)::bigint as count from task_state_counts where workflow_id = ${workflowId}
          group by state having sum(count) > 0`
      : counted`
          select t.state, count(*) as count from tasks t where t.workflow_id = ${workflowId} and ${rows} group by t.state`,
  )

/**
 * The newest tasks of each of some states, the newest of each first, as many as one answer may show. What is stored of them is
 * looked at before how large they are, so that no more is unpacked. By tasks_workflow.
 */
const newestOf = (
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
  summary: 'Show the tasks of a workflow by their states',
  description:
    'The states of the workflow in their order, then those that only earlier versions have and tasks are in, each with the number of its tasks and the newest. Tasks are those that tasks:ListTasks lets the caller see; of large ones no more than 16 MiB are shown.',
  tag: 'Workflows',
  action: 'workflows:GetWorkflow',
  alsoActions: ['tasks:ListTasks'],
  query: z.object({
    per_state: z.coerce.number().int().min(1).max(MOST).default(20).describe('Tasks of a state that are shown'),
  }),
  answers: { 200: Board },
  async run({ resource: workflow, db, caller, query }) {
    const { id, project_id, version } = workflow
    const visible = visibleRows(
      caller,
      { action: 'tasks:ListTasks', project: project_id, ...listTargetOf(taskKind) },
      { project: sql.fragment`t.project_id`, id: sql.fragment`t.id` },
    )
    const counts = new Map((await countsOf(db, id, visible)).map(({ state, count }) => [state, count]))
    const tasks = Map.groupBy(
      await newestOf(db, id, [...counts.keys()], visible.rows, query.per_state),
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
      total: [...counts.values()].reduce((sum, count) => sum + count, 0),
      states: states.map(each => ({
        ...each,
        count: counts.get(each.state) ?? 0,
        tasks: (tasks.get(each.state) ?? []).map(taskKind.present),
      })),
    }
  },
})
