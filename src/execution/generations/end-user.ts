import { type EndUserAccess, endUserFailure, endUserView, showToEndUser } from '#core/api/end-user.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { Fragment, Queryable } from '#core/db/sql.ts'
import type { EndUser } from '#core/iam/caller.ts'
import type { GenerationRow } from './model.ts'

/** What end users see of turns of their sessions. */

export const messageView = endUserView(
  {
    document_id: true,
    role: true,
    origin: true,
    content: true,
    refused: true,
    annotations: true,
    // Documents are of the team; their texts are in the content.
    parts: (parts: { type: string }[] | null) => parts?.filter(({ type }) => type !== 'document') ?? null,
    position: true,
    created_at: true,
    generation_id: true,
    author_name: true,
    feedback: true,
  },
  ['conversation_id', 'model', 'actor_id', 'agent_id', 'metadata'],
)

/** Result of a turn, and the response to a request that does not wait for it. Only client tools have pending calls. */
export const turnResultView = endUserView(
  {
    status: true,
    session_id: true,
    generation_id: true,
    content: true,
    message: message => message && showToEndUser(messageView, message),
    required_action: true,
  },
  ['conversation_id', 'model', 'trace_id', 'reasoning', 'logprobs', 'ignored_params'],
)

export const turnEventViews = {
  started: endUserView(['generation_id'], ['trace_id', 'agent_version']),
  delta: endUserView(['choices']),
  step_restarted: endUserView([], ['step']),
  requires_action: turnResultView,
  completed: turnResultView,
}

/** Progress of a turn for protocol mounts, without names, arguments and results of tools. */
export const mountEventViews = {
  step_restarted: endUserView(['step']),
  step_settled: endUserView(['step']),
  tool_call: endUserView(['tool_call_id', 'label'], ['tool_name']),
  tool_result: endUserView(['tool_call_id', 'label', 'ok'], ['tool_name']),
  approval: endUserView(['approval_id', 'tool_call_id']),
  state: endUserView(['patch']),
}

const generationView = endUserView(
  {
    id: true,
    session_id: true,
    status: true,
    stop_reason: true,
    created_at: true,
    completed_at: true,
    error: endUserFailure,
  },
  [
    'project_id',
    'agent_id',
    'trace_id',
    'agent_version',
    'initiator_generation_id',
    'chain_id',
    'conversation_id',
    'actor_id',
    'started_by_principal_type',
    'started_by_principal_id',
    'usage',
    'routing',
    'tool_surface',
    'extraction',
    'step_count',
    'action_id',
    'trigger_id',
    'orchestration_run_id',
    'node_id',
    'node_attempt',
    'source',
    'publisher_project_id',
    'metadata',
    'content_redacted_at',
    'content_redacted_by_principal_type',
    'content_redacted_by_principal_id',
    'started_at',
    'last_activity_at',
    'output',
    'required_action',
    'memory_entries',
    'updated_at',
  ],
)

/** The sessions of an end user. Contributed by the module of sessions. */
export const endUserSessions = extensionPoint<{
  /** Whether a session belongs to the end user. */
  owns: (db: Queryable, endUser: EndUser, sessionId: string) => Promise<boolean>
  /** Select of the ids of its sessions. */
  ids: (endUser: EndUser) => Fragment
}>({
  name: 'sessions of end users',
  folder: 'execution/generations',
  description: 'Finds the sessions that belong to an end user',
})

/** Whether a row belongs to a session of the end user. */
export const isOfOwnSession = async (
  { session_id }: { session_id: string | null },
  endUser: EndUser,
  db: Queryable,
): Promise<boolean> => session_id !== null && ((await endUserSessions.only()?.owns(db, endUser, session_id)) ?? false)

export const generationAccess: EndUserAccess<GenerationRow> = {
  scope: 'chat',
  owns: isOfOwnSession,
  view: generationView,
  events: turnEventViews,
}
