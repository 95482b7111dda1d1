import { z } from 'zod'
import type { Kind } from '../../core/api/kind.ts'
import { anyOf, between, listTable, page, pageOf, tagCondition, tagFilter, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { tagOperations } from '../../core/api/tags.ts'
import { callerContext } from '../../core/api/tool-context.ts'
import { sql, substring } from '../../core/db/sql.ts'
import { WaitQuery } from '../../execution/generations/answer.ts'
import { AcceptedTurn, TurnResult } from '../turns/result.ts'
import { cancelSession } from './cancel.ts'
import { changeSession } from './change.ts'
import { createSession, projectOfAgent } from './create.ts'
import { forkSession } from './fork.ts'
import { generate } from './generate.ts'
import { sessionKind } from './kind.ts'
import { sendMessage } from './message.ts'
import {
  ForkInput,
  SESSION_STATUSES,
  Session,
  SessionGenerateInput,
  SessionInput,
  SessionMessage,
  SessionMessageInput,
  SessionMessageStored,
  SessionPatch,
  type SessionRow,
} from './model.ts'
import { removeSession } from './remove.ts'
import {
  messageColumns,
  messageTables,
  type SessionMessageRow,
  sessionColumns,
  statusCondition,
  updateSession,
} from './store.ts'

const tag = 'Sessions'
const anySession = sessionKind as unknown as Kind

const create = operation({
  id: 'createSession',
  method: 'post',
  path: '/sessions',
  summary: 'Open a session of an end user with an agent',
  tag,
  action: 'sessions:CreateSession',
  alsoActions: ['actors:CreateActor'],
  creates: sessionKind,
  projectOf: projectOfAgent,
  body: SessionInput,
  answers: { 201: Session },
  raises: ['AGENT_NOT_FOUND', 'ACTOR_NOT_FOUND', 'INVALID_TOOL_CONTEXT_KEY', 'SINGLE_SESSION_CONFLICT'],
  run: async context => sessionKind.present(await createSession(context)),
})

const list = operation({
  id: 'listSessions',
  method: 'get',
  path: '/sessions',
  summary: 'List sessions',
  tag,
  action: 'sessions:ListSessions',
  lists: sessionKind,
  query: z.object({
    agent_id: textFilter,
    actor_id: textFilter,
    status: anyOf(SESSION_STATUSES),
    name: textFilter,
    tags: tagFilter,
  }),
  answers: { 200: pageOf(Session) },
  // sessions_project serves the order; sessions_agent, sessions_actor and sessions_tags their filters.
  run: context => {
    const { query } = context
    return listTable<SessionRow>(context, {
      table: 'sessions',
      columns: sessionColumns,
      tags: true,
      where: [
        query.agent_id !== undefined && sql.fragment`t.agent_id = ${query.agent_id}`,
        query.actor_id !== undefined && sql.fragment`t.actor_id = ${query.actor_id}`,
        query.name !== undefined && sql.fragment`t.name ilike ${substring(query.name)}`,
        statusCondition(query.status),
        tagCondition(sql.fragment`t.tags`, query.tags),
      ],
      present: sessionKind.present,
    })
  },
})

const read = itemOperation(sessionKind, {
  id: 'getSession',
  method: 'get',
  path: '/sessions/{session_id}',
  summary: 'Read one session',
  tag,
  action: 'sessions:GetSession',
  answers: { 200: Session },
  run: async ({ resource }) => sessionKind.present(resource),
})

const change = itemOperation(sessionKind, {
  id: 'updateSession',
  method: 'patch',
  path: '/sessions/{session_id}',
  summary: 'Change, close or reopen a session',
  description: 'Closing cancels the turns that wait and aborts the one that runs.',
  tag,
  action: 'sessions:UpdateSession',
  body: SessionPatch,
  answers: { 200: Session },
  raises: ['INVALID_TOOL_CONTEXT_KEY', 'SESSION_EXPIRED', 'SINGLE_SESSION_CONFLICT'],
  run: async context => sessionKind.present(await changeSession(context)),
})

const remove = itemOperation(sessionKind, {
  id: 'deleteSession',
  method: 'delete',
  path: '/sessions/{session_id}',
  summary: 'Delete a session with its conversation',
  tag,
  action: 'sessions:DeleteSession',
  answers: { 204: null },
  run: ({ tx, services, resource }) => removeSession(tx, services, resource.id),
})

const listMessages = itemOperation(sessionKind, {
  id: 'listSessionMessages',
  method: 'get',
  path: '/sessions/{session_id}/messages',
  summary: 'List the messages of a session in order',
  tag,
  action: 'sessions:ListSessionMessages',
  paged: true,
  query: z.object({ role: anyOf(['user', 'assistant']) }),
  answers: { 200: pageOf(SessionMessage) },
  // conversation_messages_position serves the order.
  run: context =>
    page<SessionMessageRow>(context, {
      columns: messageColumns,
      from: messageTables,
      where: [
        sql.fragment`m.conversation_id = ${context.resource.conversation_id}`,
        context.query.role && sql.fragment`m.role = any(${sql.array([...context.query.role], 'text')})`,
        between(sql.fragment`m.created_at`, context.page),
      ],
      order: sql.fragment`m.position`,
      present: row => row,
    }),
})

const message = itemOperation(sessionKind, {
  id: 'sendSessionMessage',
  method: 'post',
  path: '/sessions/{session_id}/messages',
  summary: 'Store a message of the end user; with auto_generate, ask for a reply',
  tag,
  action: 'sessions:SendSessionMessage',
  transaction: false,
  query: WaitQuery,
  alsoActions: ['documents:GetDocument'],
  body: SessionMessageInput,
  answers: { 201: SessionMessageStored, 200: SessionMessageStored },
  raises: [
    'AGENT_NOT_FOUND',
    'AI_PROVIDER_ERROR',
    'AI_PROVIDER_MISCONFIGURED',
    'GENERATION_FAILED',
    'INVALID_TOOL_CONTEXT_KEY',
    'OUTPUT_SCHEMA_VALIDATION_FAILED',
    'NAME_CONFLICT',
    'PROJECT_PAUSED',
    'SESSION_CLOSED',
    'SESSION_EXPIRED',
  ],
  run: sendMessage,
})

const generateReply = itemOperation(sessionKind, {
  id: 'generateSessionReply',
  method: 'post',
  path: '/sessions/{session_id}/generate',
  summary: 'Let the agent answer',
  tag,
  action: 'sessions:SendSessionMessage',
  transaction: false,
  query: WaitQuery,
  body: SessionGenerateInput,
  bodyOptional: true,
  answers: { 202: AcceptedTurn, 200: TurnResult },
  produces: 'text/event-stream',
  raises: [
    'AGENT_NOT_FOUND',
    'AI_PROVIDER_ERROR',
    'AI_PROVIDER_MISCONFIGURED',
    'GENERATION_ALREADY_IN_PROGRESS',
    'GENERATION_FAILED',
    'INVALID_TOOL_CONTEXT_KEY',
    'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
    'OUTPUT_SCHEMA_VALIDATION_FAILED',
    'PROJECT_PAUSED',
    'QUOTA_EXCEEDED',
    'SESSION_CLOSED',
    'SESSION_EXPIRED',
  ],
  run: generate,
})

const cancel = itemOperation(sessionKind, {
  id: 'cancelSession',
  method: 'post',
  path: '/sessions/{session_id}/cancel',
  summary: 'Abort the running turn of a session and cancel automatic ones that wait',
  tag,
  action: 'sessions:SendSessionMessage',
  answers: { 200: Session },
  run: async ({ tx, services, resource }) => sessionKind.present(await cancelSession(tx, services, resource.id)),
})

const fork = itemOperation(sessionKind, {
  id: 'forkSession',
  method: 'post',
  path: '/sessions/{session_id}/fork',
  summary: 'Open a session that starts with the messages of another',
  tag,
  action: 'sessions:GetSession',
  alsoActions: ['sessions:CreateSession'],
  body: ForkInput,
  bodyOptional: true,
  answers: { 201: Session },
  raises: ['AGENT_NOT_FOUND', 'INVALID_TOOL_CONTEXT_KEY'],
  async run({ tx, services, resource, body, allow }) {
    const input = body ?? {}
    allow('sessions:CreateSession', { kind: anySession, project_id: resource.project_id, tags: input.tags ?? {} })
    const toolContext =
      input.tool_context === undefined
        ? undefined
        : callerContext(input.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
    return sessionKind.present(await forkSession(tx, resource.id, input, toolContext))
  },
})

const listForks = itemOperation(sessionKind, {
  id: 'listSessionForks',
  method: 'get',
  path: '/sessions/{session_id}/forks',
  summary: 'List the sessions forked from one',
  tag,
  action: 'sessions:GetSession',
  paged: true,
  answers: { 200: pageOf(Session) },
  // sessions_forks serves the order.
  run: context =>
    listTable<SessionRow>(context, {
      table: 'sessions',
      columns: sessionColumns,
      tags: true,
      where: [sql.fragment`t.forked_from_session_id = ${context.resource.id}`],
      present: sessionKind.present,
    }),
})

export const sessionOperations: Operation[] = [
  create,
  list,
  read,
  change,
  remove,
  listMessages,
  message,
  generateReply,
  cancel,
  fork,
  listForks,
  ...tagOperations(sessionKind, {
    path: '/sessions/{session_id}',
    tag,
    read: 'sessions:GetSession',
    write: 'sessions:UpdateSession',
    event: 'tags_updated',
    setTags: (tx, row, tags) => updateSession(tx, row.id, { tags }),
  }),
]
