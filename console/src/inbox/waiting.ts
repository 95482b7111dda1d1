import type {
  ApprovalEntry,
  ExceptionEntry,
  OrchestrationRun,
  PlaybookExecution,
  RequiredAction,
  SessionEntry,
  Task,
  Workflow,
} from '@muster/client'
import {
  listApprovals,
  listExceptions,
  listPlaybookExecutions,
  listRuns,
  listSessions,
  listTasks,
  listWorkflows,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api, every, POLL_MS } from '#api.ts'
import type { PageOf } from '#components/list.tsx'
import { usePermissions } from '#projects.ts'
import { activityInterval } from './activity.ts'

/** Rows of a list of the inbox. */
export const ROWS = 25
/** Forms and tasks of a kind that are read. */
const FORMS = 100
/** States of workflows in which people act, whose tasks are read. */
const STATES = 20

const COUNT_POLL_MS = 30_000

/** Kinds of exceptions but sessions that wait for a person, which have a separate list. */
const EXCEPTIONS = [
  'run_failed',
  'worker_lost',
  'guardrail_tripwire',
  'approval_expired',
  'quota_unpriced',
  'event_trigger_loop',
  'chain_limit',
  'manual',
  'secret_expiring',
  'memory_rule_failed',
  'webhook_failing',
  'formation_drift',
] as const satisfies ExceptionEntry['kind'][]

/** A form that a person has to fill in, with the time until which and since when. */
export type PendingForm = { id: string; until: string | null; since: string } & (
  | { kind: 'input'; run: OrchestrationRun; action: RequiredAction }
  | { kind: 'step'; execution: PlaybookExecution }
  | { kind: 'task'; task: Task; workflow: Workflow }
)

const readInputs = async (projectId: string, signal: AbortSignal): Promise<PendingForm[]> => {
  const args = {
    project_id: projectId,
    // A run sleeps while another branch of it waits for a time.
    status: ['awaiting_input' as const, 'sleeping' as const],
    view: 'summary' as const,
    limit: FORMS,
  }
  const { data } = await listRuns(api, args, { signal }).page()
  return (data as OrchestrationRun[]).flatMap(run =>
    (run.required_actions ?? [])
      .filter(({ type }) => type === 'human_input')
      .map(action => ({
        kind: 'input' as const,
        id: `${run.id}-${action.node_id}`,
        until: action.expires_at,
        since: run.updated_at,
        run,
        action,
      })),
  )
}

const readSteps = async (projectId: string, signal: AbortSignal): Promise<PendingForm[]> => {
  const args = {
    project_id: projectId,
    status: ['waiting' as const],
    waiting_on_type: ['manual' as const],
    limit: FORMS,
  }
  const { data } = await listPlaybookExecutions(api, args, { signal }).page()
  return (data as PlaybookExecution[]).map(execution => ({
    kind: 'step' as const,
    id: `${execution.id}-${execution.waiting_on?.step_key}`,
    until: execution.waiting_on?.due_at ?? null,
    since: execution.updated_at,
    execution,
  }))
}

const readTasks = async (projectId: string, signal: AbortSignal): Promise<PendingForm[]> => {
  const workflows = await listWorkflows(api, { project_id: projectId, limit: FORMS }, { signal }).page()
  const states = (workflows.data as Workflow[]).flatMap(workflow =>
    workflow.states.filter(({ kind }) => kind === 'human').map(({ name }) => ({ workflow, name })),
  )
  const lists = await Promise.all(
    states.slice(0, STATES).map(async ({ workflow, name }) => {
      const args = {
        project_id: projectId,
        workflow_id: workflow.id,
        state: name,
        status: ['open' as const],
        limit: FORMS,
      }
      const { data } = await listTasks(api, args, { signal }).page()
      return (data as Task[]).map(task => ({
        kind: 'task' as const,
        id: task.id,
        until: task.due_at,
        since: task.entered_state_at,
        task,
        workflow,
      }))
    }),
  )
  return lists.flat()
}

/** Forms by the time that is left, then by age. */
const byUrgency = (one: PendingForm, other: PendingForm): number =>
  (one.until ?? '9').localeCompare(other.until ?? '9') || one.since.localeCompare(other.since)

/** Reads the forms that a person has to fill in. */
export function useForms(projectId: string, { pollMs = POLL_MS }: { pollMs?: number } = {}) {
  const isAllowed = usePermissions(projectId)
  const sources = [
    isAllowed(listRuns) && readInputs,
    isAllowed(listPlaybookExecutions) && readSteps,
    isAllowed(listTasks) && isAllowed(listWorkflows) && readTasks,
  ].filter(source => typeof source === 'function')
  return useQuery<PendingForm[]>({
    queryKey: ['forms', projectId, sources.length],
    queryFn: async ({ signal }) => {
      const lists = await Promise.all(sources.map(source => source(projectId, signal)))
      return lists.flat().toSorted(byUrgency)
    },
    enabled: sources.length > 0,
    refetchInterval: every(pollMs),
  })
}

/** Reads a page of the approvals that wait for a decision. */
export const useApprovals = (projectId: string, page: number, limit = ROWS) =>
  useQuery<PageOf<ApprovalEntry>>({
    queryKey: ['approvals', projectId, page, limit],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId, status: ['pending' as const], limit, offset: (page - 1) * limit }
      return listApprovals(api, args, { signal }).page()
    },
    placeholderData: previous => previous,
    enabled: usePermissions(projectId)(listApprovals) === true,
    refetchInterval: activityInterval(projectId),
  })

/** Reads the open exceptions, the most severe first. */
export const useExceptions = (projectId: string, limit = 100) =>
  useQuery<PageOf<ExceptionEntry>>({
    queryKey: ['exceptions', projectId, limit],
    queryFn: async ({ signal }) => {
      const args = {
        project_id: projectId,
        status: ['open' as const, 'acknowledged' as const],
        kind: [...EXCEPTIONS],
        limit,
      }
      return listExceptions(api, args, { signal }).page()
    },
    enabled: usePermissions(projectId)(listExceptions) === true,
    refetchInterval: activityInterval(projectId),
  })

/** Reads the sessions that wait for a person. */
export const useAttention = (projectId: string, limit = 100) =>
  useQuery<PageOf<SessionEntry>>({
    queryKey: ['sessions', projectId, 'attention', limit],
    queryFn: async ({ signal }) => {
      return listSessions(api, { project_id: projectId, attention: true, limit }, { signal }).page()
    },
    enabled: usePermissions(projectId)(listSessions) === true,
    refetchInterval: activityInterval(projectId),
  })

/** Returns how much waits for a person in a project. */
export function useWaiting(projectId: string): number {
  const forms = useForms(projectId, { pollMs: COUNT_POLL_MS })
  const lists = [useApprovals(projectId, 1, 1), useExceptions(projectId, 1), useAttention(projectId, 1)]
  return (forms.data?.length ?? 0) + lists.reduce((sum, { data }) => sum + (data?.total ?? 0), 0)
}
