import { runKind } from '#automation/orchestrations/runs/model.ts'
import { findSession, sessionKind } from '#conversation/sessions/kind.ts'
import { requirePermitted } from '#core/api/access.ts'
import { readTurnEnd } from '#execution/generations/request/wait-for-turn.ts'
import { refuse } from './fault.ts'
import { findTask, type Owner, type TaskRow } from './store.ts'
import type { A2aRequest } from './target.ts'
import type { Artifact, StreamResponse, Task, TaskStatus, WireMessage } from './wire.ts'

/** Tasks as clients see them. */

export const ownerOf = ({ target, caller, project_id }: A2aRequest): Owner => ({
  target_id: target.id,
  principal_id: caller.principal.id,
  project_id,
})

/** Requires that the caller may still use what the task works in. @throws FORBIDDEN */
async function requireAccess({ services, caller, project_id }: A2aRequest, task: TaskRow): Promise<void> {
  if (task.run_id !== null) {
    const row = { id: task.run_id, project_id, orchestration_id: task.target_id } as never
    return requirePermitted(caller, 'orchestrations:GetRun', { kind: runKind, row })
  }
  if (task.session_id === null) return
  const row = await findSession(services.pool, task.session_id)
  if (row) requirePermitted(caller, 'sessions:SendSessionMessage', { kind: sessionKind, row })
}

/** Returns a task of the caller. @throws TASK_NOT_FOUND for any other, FORBIDDEN */
export async function requireTask(request: A2aRequest, id: string): Promise<TaskRow> {
  const task = await readTask(request, id)
  await requireAccess(request, task)
  return task
}

/** Returns the current state of a task whose access is checked. @throws TASK_NOT_FOUND if it was deleted */
export async function readTask(request: A2aRequest, id: string): Promise<TaskRow> {
  const { services } = request
  const task = await findTask(services.pool, ownerOf(request), id)
  if (!task) return refuse('TASK_NOT_FOUND', `Task ${id} not found`, { id })
  if (!task.unstored || task.turn_id === null) return task
  // The answer of a turn without stored content is available while its frames are.
  const ended = await readTurnEnd(services, task.turn_id)
  const { content = null, object = null } = (ended?.result ?? {}) as { content?: string | null; object?: unknown }
  const { tool_calls = null } = (ended?.result as { required_action?: Pick<TaskRow, 'tool_calls'> } | null)
    ?.required_action ?? { tool_calls: task.tool_calls }
  return { ...task, content, object, tool_calls }
}

export const REPLY = 'reply'

/** Returns the answer of a task; none before the task has one. */
function artifactsOf({ state, run_id, content, object }: TaskRow): Artifact[] {
  if (state !== 'TASK_STATE_COMPLETED' && state !== 'TASK_STATE_INPUT_REQUIRED') return []
  const data = object == null ? [] : [{ data: object, mediaType: 'application/json' }]
  if (run_id !== null) return data.length > 0 ? [{ artifactId: 'output', name: 'output', parts: data }] : []
  const text = content ? [{ text: content, mediaType: 'text/plain' }] : []
  const parts = [...text, ...data]
  return parts.length > 0 ? [{ artifactId: REPLY, name: REPLY, parts }] : []
}

/** Returns a message of the agent in a context. */
export const agentMessage = (
  messageId: string,
  { contextId, taskId }: { contextId: string; taskId?: string },
  parts: WireMessage['parts'],
): WireMessage => ({ messageId, contextId, ...(taskId && { taskId }), role: 'ROLE_AGENT', parts })

/** Returns what a task waits for or why it has ended without an answer, as text and as data. */
function explanationOf(task: TaskRow): WireMessage['parts'] {
  const { state, failure, tool_calls, approvals, actions, operated } = task
  if (state !== 'TASK_STATE_INPUT_REQUIRED')
    return failure && state !== 'TASK_STATE_COMPLETED'
      ? [{ text: failure.message }, { data: { code: failure.code }, mediaType: 'application/json' }]
      : []
  const data = (value: object) => ({ data: value, mediaType: 'application/json' })
  if (tool_calls) return [{ text: 'Outputs of tool calls are required' }, data({ tool_calls })]
  if (approvals) return [{ text: 'An approval is required' }, data({ approvals })]
  if (operated) return [{ text: 'A person has taken over the conversation' }]
  const inputs = (actions ?? []).map(({ type, node_id, prompt, options, expires_at }) => ({
    type,
    node_id,
    prompt,
    options,
    expires_at,
  }))
  const prompts = inputs.flatMap(({ prompt }) => prompt ?? [])
  return [{ text: prompts.join('\n\n') || 'Input is required' }, data({ required_actions: inputs })]
}

export function statusOf(task: TaskRow): TaskStatus {
  const parts = explanationOf(task)
  const ids = { contextId: task.context_id, taskId: task.id }
  return {
    state: task.state,
    ...(parts.length > 0 && { message: agentMessage(`${task.id}_status`, ids, parts) }),
    timestamp: task.updated_at,
  }
}

export function presentTask(task: TaskRow): Task {
  const artifacts = artifactsOf(task)
  return {
    id: task.id,
    contextId: task.context_id,
    status: statusOf(task),
    ...(artifacts.length > 0 && { artifacts }),
  }
}

export const idsOf = ({ id, context_id }: TaskRow) => ({ taskId: id, contextId: context_id })

export const statusUpdate = (task: TaskRow, status: TaskStatus = statusOf(task)): StreamResponse => ({
  statusUpdate: { ...idsOf(task), status },
})

/** Returns the answer of a task as updates of a stream; `sent` is the text that the stream has sent. */
export const answerUpdates = (task: TaskRow, sent: string | null): StreamResponse[] =>
  artifactsOf(task).map(artifact => {
    const isComplete = sent !== null && artifact.parts.length === 1 && sent === task.content
    const shown = isComplete ? { ...artifact, parts: [{ text: '', mediaType: 'text/plain' }] } : artifact
    return { artifactUpdate: { ...idsOf(task), artifact: shown, append: isComplete, lastChunk: true } }
  })
