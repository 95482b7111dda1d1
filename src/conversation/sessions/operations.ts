import { z } from 'zod'
import { listTargetOf, visibleRows } from '#core/api/access.ts'
import { namesOf } from '#core/api/entry-fields.ts'
import { columnFilter, containsFilter, equalsFilter, tagsFilter } from '#core/api/filters.ts'
import { type Kind, kinds } from '#core/api/kind.ts'
import { booleanQuery, enumListQuery, listTable, pageOf, textFilter, timeInput } from '#core/api/lists.ts'
import { type Context, combined, itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { callerContext } from '#core/api/tool-context.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { generationKind } from '#execution/generations/model.ts'
import { spendRefusals } from '#execution/generations/request/create.ts'
import { turnFailures } from '#execution/generations/request/generate-request.ts'
import { replayTurnResponse, responseMode, WaitQuery } from '#execution/generations/request/respond.ts'
import { replayToolOutputs, submitToolOutputs } from '#execution/generations/request/tool-outputs.ts'
import { turnWaiting } from '#execution/generations/streams/events.ts'
import { hasFoundActor } from '../actors/search.ts'
import { clearMailbox } from '../dialog/mailbox/mailbox.ts'
import { AcceptedReply, conversationTurnEvents, TurnResult } from '../dialog/mailbox/result.ts'
import { MESSAGE_ORIGINS } from '../dialog/messages/model.ts'
import { checkBodyParts } from '../dialog/messages/parts.ts'
import { messageOrigin, messagePage } from '../dialog/messages/store.ts'
import { actorOverviewOperation } from './actor-overview.ts'
import { requestHuman } from './attention.ts'
import { changeSession } from './change.ts'
import { createSession, forkSession, projectOfAgent } from './create.ts'
import {
  createAccess,
  generateAccess,
  isShown,
  listAccess,
  messagesAccess,
  outputsAccess,
  patchAccess,
  sendAccess,
  sessionAccess,
} from './end-user.ts'
import { generateInSession } from './generate.ts'
import { handBack } from './handback.ts'
import { hideSession } from './hide.ts'
import { sessionKind } from './kind.ts'
import { replaySendMessage, sendMessage } from './message.ts'
import { lastMessage } from './message-preview.ts'
import {
  AttentionInput,
  CONTROLS,
  ForkInput,
  HandbackInput,
  HandedBack,
  OperatorMessageInput,
  SESSION_STATUSES,
  Session,
  SessionAssignees,
  SessionGenerateInput,
  SessionInput,
  SessionMessageInput,
  SessionMessageListed,
  SessionMessageStored,
  SessionPatch,
  type SessionRow,
  SessionToolOutputs,
  TakeoverInput,
} from './model.ts'
import { sendOperatorMessage } from './operator-message.ts'
import { ownFeedback } from './own-feedback.ts'
import { readOperation } from './read.ts'
import { sessionFailure } from './session-locks.ts'
import { messageColumns, messageTables, statusCondition } from './store.ts'
import { sessionTicketOperation, streamOperation } from './stream.ts'
import { checkAssignee, OPERATE_ACTION, takeOver } from './takeover.ts'
import { addUpAssignees, listSessionAssignees } from './takeover-store.ts'
import { cancelSession } from './turns.ts'
import { typingOperation } from './typing.ts'

const tag = 'Sessions'
const path = '/sessions/{session_id}'
const sessions = resource(sessionKind, { path: '/sessions', tag })
const anySession = sessionKind as unknown as Kind

const createOperation = operation({
  id: 'createSession',
  method: 'post',
  path: '/sessions',
  summary: 'Create a session',
  description: 'Creates a session of an end user with an agent, and its conversation.',
  tag,
  action: 'sessions:CreateSession',
  alsoActions: ['actors:CreateActor'],
  creates: sessionKind,
  endUser: createAccess,
  projectOf: projectOfAgent,
  body: SessionInput,
  validate: ({ services, body }) => void callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX),
  answers: { 201: Session },
  raises: [
    'AGENT_NOT_FOUND',
    'ACTOR_NOT_FOUND',
    'ACTOR_LIMIT_EXCEEDED',
    'INVALID_TOOL_CONTEXT_KEY',
    'SINGLE_SESSION_CONFLICT',
  ],
  run: async context => sessionKind.present(await createSession(context)),
})

const updateOperation = itemOperation(sessionKind, {
  id: 'updateSession',
  method: 'patch',
  path,
  summary: 'Update a session',
  description:
    'Changes settings, closes or reopens the session. Closing cancels queued turns and aborts the running one.',
  tag,
  action: 'sessions:UpdateSession',
  endUser: patchAccess,
  body: SessionPatch,
  answers: { 200: Session },
  raises: ['INVALID_TOOL_CONTEXT_KEY', 'SESSION_EXPIRED', 'SINGLE_SESSION_CONFLICT'],
  run: async context => sessionKind.present(await changeSession(context)),
})

const listMessages = itemOperation(sessionKind, {
  id: 'listSessionMessages',
  method: 'get',
  path: `${path}/messages`,
  summary: 'List messages of a session',
  description: 'Oldest first, including replies of the agent.',
  tag,
  action: 'sessions:ListSessionMessages',
  endUser: messagesAccess,
  paged: true,
  query: z.object({
    role: enumListQuery(['user', 'assistant']).describe('Role of the messages; repeat for several'),
    origin: enumListQuery(MESSAGE_ORIGINS).describe('Origin of the messages; repeat for several'),
  }),
  answers: { 200: pageOf(SessionMessageListed) },
  run: context =>
    messagePage<z.output<typeof SessionMessageListed>>(context, context.resource.conversation_id, {
      columns: sql.fragment`${messageColumns}, ${ownFeedback(context.caller)} as feedback`,
      from: messageTables,
      filters: [
        context.query.role && sql.fragment`m.role = any(${sql.array([...context.query.role], 'text')})`,
        context.query.origin && sql.fragment`${messageOrigin} = any(${sql.array([...context.query.origin], 'text')})`,
        context.caller.end_user && isShown,
      ],
    }),
})

const listForks = itemOperation(sessionKind, {
  id: 'listSessionForks',
  method: 'get',
  path: `${path}/forks`,
  summary: 'List forks of a session',
  description: 'Each with the position of the last message copied from the session.',
  tag,
  action: 'sessions:GetSession',
  paged: true,
  answers: { 200: pageOf(Session) },
  // Order by sessions_forks.
  run: context =>
    listTable<SessionRow>(context, {
      table: sessionKind.table,
      columns: sessionKind.columns,
      tags: true,
      filters: [sql.fragment`t.forked_from_session_id = ${context.resource.id}`],
      present: sessionKind.present,
    }),
})

const takeoverOperation = itemOperation(sessionKind, {
  id: 'takeOverSession',
  command: ['sessions', 'take-over'],
  method: 'post',
  path: `${path}/takeover`,
  summary: 'Take over a session',
  description:
    'A person answers instead of the agent until the handback. Queued replies are cancelled; messages of the end user are stored. A second takeover assigns the session to another user; `expected_assigned_to` refuses it if someone else was faster. Not available to background work.',
  tag,
  action: OPERATE_ACTION,
  internal: true,
  mcp: true,
  body: TakeoverInput,
  bodyOptional: true,
  answers: { 200: Session },
  raises: ['SESSION_ASSIGNED', 'SESSION_CLOSED', 'SESSION_EXPIRED'],
  prepare: checkAssignee,
  // Notes to the agent are messages, which can be erased, and not in the entry.
  decision: ({ body, caller }) => ({
    decision: 'taken_over',
    operator_id: caller.user.id,
    assigned_to: body?.assignee_user_id ?? caller.user.id,
    running: body?.running,
  }),
  run: async context => sessionKind.present(await takeOver(context)),
})

const operatorMessageOperation = itemOperation(sessionKind, {
  id: 'sendOperatorMessage',
  method: 'post',
  path: `${path}/operator-messages`,
  command: ['sessions', 'send-as-operator'],
  summary: 'Send a message as an operator',
  description:
    'Stores a message that the end user sees with the display name of the calling user. The agent reads it after the handback. Not available to background work.',
  tag,
  action: OPERATE_ACTION,
  alsoActions: ['documents:GetDocument', 'files:DownloadFile'],
  internal: true,
  mcp: true,
  body: OperatorMessageInput,
  answers: { 201: SessionMessageListed, 200: SessionMessageListed },
  raises: [
    'FILE_NOT_FOUND',
    'MEDIA_NOT_ACCEPTED',
    'NAME_CONFLICT',
    'SESSION_CLOSED',
    'SESSION_EXPIRED',
    'SESSION_NOT_UNDER_OPERATOR',
  ],
  // No model takes the parts: it reads the text form of the message.
  prepare: context => checkBodyParts(context, context.resource.project_id, context.body, async () => null),
  run: sendOperatorMessage,
})

/** Returns the removal of sessions, by which an end user hides a session. */
const hidesForEndUsers = (remove: Operation): Operation => ({
  ...remove,
  run: (context: Context<never, never, never, never>) =>
    (context as Context).caller.end_user ? hideSession(context as never) : remove.run(context),
})

const assigneesOf = ({ db, visible }: Pick<Context, 'db' | 'visible'>) =>
  listSessionAssignees(
    db,
    visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id`, tags: sql.fragment`t.tags` }).rows,
  )

const listAssignees = operation({
  id: 'listSessionAssignees',
  command: ['sessions', 'assignees', 'list'],
  method: 'get',
  path: '/sessions/assignees',
  summary: 'List users who are assigned to sessions',
  description: 'Returns the users who are assigned to sessions that the caller may list, at most 500, by name.',
  tag,
  action: 'sessions:ListSessions',
  lists: sessionKind,
  paged: false,
  across: combined(assigneesOf, async (listed, { db }) => ({ data: await addUpAssignees(db, listed.flat()) })),
  answers: { 200: SessionAssignees },
  run: async context => ({ data: await assigneesOf(context) }),
})

/** Condition of the sessions `t` that have a rating which the caller may list. By feedback_session. */
function hasRating({ caller, project }: Pick<Context, 'caller' | 'project'>, rating: number) {
  const { rows } = visibleRows(
    caller,
    { ...listTargetOf(kinds.get('feedback')), action: 'sessions:ListFeedback', project },
    { project: sql.fragment`f.project_id`, id: sql.fragment`f.id`, parent: sql.fragment`f.session_id` },
  )
  // With a limit the planner probes the index for each session instead of reading the feedback of all.
  return sql.fragment`(
    select true from feedback f where f.session_id = t.id and f.rating = ${rating} and ${rows} limit 1)`
}

export const sessionOperations: Operation[] = [
  createOperation,
  // Order by sessions_project; filters by sessions_agent, sessions_actor, sessions_operated, sessions_assigned,
  // sessions_attention, feedback_session and sessions_tags.
  sessions.list({
    endUser: listAccess,
    also: [namesOf({ actor: { columns: ['name', 'external_id'] }, agent: { columns: ['name'] } }), lastMessage],
    filters: {
      agent_id: equalsFilter('agent_id'),
      actor_id: equalsFilter('actor_id'),
      status: columnFilter(
        enumListQuery(SESSION_STATUSES).describe('Status of the sessions; repeat for several'),
        statusCondition,
      ),
      name: containsFilter('name'),
      control: columnFilter(
        z.enum(CONTROLS).optional().describe('Who answers'),
        control => sql.fragment`t.control = ${control}`,
      ),
      assigned_to: columnFilter(
        textFilter.describe('ID of the user who is assigned; `none` for sessions without one'),
        id => (id === 'none' ? sql.fragment`t.assigned_to is null` : sql.fragment`t.assigned_to = ${id}`),
      ),
      attention: columnFilter(booleanQuery.optional().describe('Whether a person is requested'), isRequested =>
        isRequested ? sql.fragment`t.attention is not null` : sql.fragment`t.attention is null`,
      ),
      actor: columnFilter(
        textFilter.describe(
          'Part of the name or external ID of the end user, or its ID. Requires `actors:GetActor` on the end user.',
        ),
        () => null,
      ),
      rating: columnFilter(
        z
          .enum(['1', '-1'])
          .optional()
          .describe(
            'Rating that a message or turn of the session has: 1 – good, -1 – bad. Ratings that the caller may not list with `sessions:ListFeedback` do not count.',
          ),
        () => null,
      ),
      updated_after: columnFilter(
        timeInput.optional().describe('Time after which the session changed or the end user wrote'),
        time => sql.fragment`greatest(t.updated_at, t.last_activity_at) > ${time}::timestamptz`,
      ),
      tags: tagsFilter,
      ephemeral: columnFilter(
        booleanQuery.optional().describe('Whether to list ephemeral sessions instead of the others. Default false.'),
        () => null,
      ),
    },
    where: context => [
      context.query.ephemeral ? sql.fragment`t.ephemeral` : sql.fragment`not t.ephemeral`,
      context.query.actor !== undefined && hasFoundActor(context, sql.fragment`t.actor_id`, context.query.actor),
      context.query.rating !== undefined && hasRating(context, Number(context.query.rating)),
    ],
  }),
  listAssignees,
  sessions.get({ endUser: sessionAccess() }),
  updateOperation,
  hidesForEndUsers(
    sessions.remove({
      endUser: sessionAccess(),
      summary: 'Delete a session',
      description:
        'Deletes the session with its conversation, messages and turns. Open turns fail with RESOURCE_NOT_FOUND. Its end user, generations, traces and forks are retained. For an end user, the session is closed and hidden instead.',
      check: ({ id, conversation_id, project_id }, { tx, services }) =>
        clearMailbox(
          tx,
          services,
          { id: conversation_id, project_id },
          sessionFailure('RESOURCE_NOT_FOUND', undefined, { id }),
        ),
    }),
  ),
  listMessages,
  sessions.action('messages', {
    id: 'sendSessionMessage',
    command: ['sessions', 'send'],
    starts: { kind: 'generation', field: 'generation_id' },
    summary: 'Send a message',
    description:
      'Stores a message of the end user. With auto_generate, also requests a reply. Concurrent messages of a session are answered in the order in which they are stored.',
    action: 'sessions:SendSessionMessage',
    endUser: sendAccess,
    transaction: false,
    waiting: turnWaiting(false),
    query: WaitQuery,
    alsoActions: ['documents:GetDocument', 'files:DownloadFile'],
    body: SessionMessageInput,
    answers: { 201: SessionMessageStored, 200: SessionMessageStored },
    raises: [
      'AGENT_NOT_FOUND',
      'AI_PROVIDER_ERROR',
      'AI_PROVIDER_MISCONFIGURED',
      'MODEL_ROUTE_NOT_FOUND',
      'FILE_NOT_FOUND',
      'GENERATION_FAILED',
      'INVALID_TOOL_CONTEXT_KEY',
      'MEDIA_NOT_ACCEPTED',
      'OUTPUT_SCHEMA_VALIDATION_FAILED',
      'NAME_CONFLICT',
      'PROJECT_PAUSED',
      ...spendRefusals,
      'SESSION_CLOSED',
      'SESSION_EXPIRED',
    ],
    run: sendMessage,
    again: replaySendMessage,
  }),
  sessions.action('generate', {
    id: 'generateSessionReply',
    starts: { kind: 'generation', field: 'generation_id' },
    summary: 'Generate a reply',
    description:
      'Generates a reply of the agent, in the background unless `wait` or `stream` is set. Turns of a session run in sequence; `on_busy` determines what happens while another turn runs.',
    action: 'sessions:SendSessionMessage',
    endUser: generateAccess,
    transaction: false,
    query: WaitQuery,
    body: SessionGenerateInput,
    bodyOptional: true,
    answers: { 202: AcceptedReply, 200: TurnResult },
    stream: conversationTurnEvents,
    waiting: turnWaiting(false),
    raises: [
      'AGENT_NOT_FOUND',
      'AI_PROVIDER_ERROR',
      'AI_PROVIDER_MISCONFIGURED',
      'MODEL_ROUTE_NOT_FOUND',
      'GENERATION_ALREADY_IN_PROGRESS',
      'GENERATION_FAILED',
      'INVALID_TOOL_CONTEXT_KEY',
      'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
      'OUTPUT_SCHEMA_VALIDATION_FAILED',
      'PROJECT_PAUSED',
      ...spendRefusals,
      'SESSION_CLOSED',
      'SESSION_EXPIRED',
      'SESSION_UNDER_OPERATOR',
    ],
    run: generateInSession,
    again: (context, made) =>
      replayTurnResponse(context, responseMode(context.body?.stream, context.query.wait), made, {
        session_id: context.resource.id,
      }),
  }),
  sessions.action('tool-outputs', {
    id: 'submitSessionToolOutputs',
    command: ['sessions', 'submit-tool-outputs'],
    starts: { kind: 'generation', field: 'generation_id' },
    summary: 'Submit tool outputs of a session',
    description:
      'Submits the outputs of the client tool calls of a paused turn and resumes it after the open turns of the session. Waits for the turn unless `wait=false`.',
    action: 'sessions:SubmitSessionToolOutputs',
    endUser: outputsAccess,
    transaction: false,
    query: WaitQuery,
    body: SessionToolOutputs,
    answers: { 202: AcceptedReply, 200: TurnResult },
    stream: conversationTurnEvents,
    waiting: turnWaiting(true),
    raises: [
      ...turnFailures,
      'GENERATION_NOT_FOUND',
      'GENERATION_CONTENT_UNAVAILABLE',
      'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
      'PROJECT_PAUSED',
      'SESSION_CLOSED',
      'SESSION_EXPIRED',
    ],
    async run(context) {
      const { body, services, resource } = context
      const { generation_id, ...outputs } = body
      const row = await generationKind.find(services.pool, generation_id)
      if (row?.session_id !== resource.id) return raise('GENERATION_NOT_FOUND', { meta: { id: generation_id } })
      return submitToolOutputs(context, row, outputs, { session_id: resource.id })
    },
    again: (context, made) => replayToolOutputs(context, context.body, made, { session_id: context.resource.id }),
  }),
  sessions.action('cancel', {
    summary: 'Cancel the running turn of a session',
    description: 'Aborts the running turn and cancels queued automatic turns. The session stays open.',
    action: 'sessions:SendSessionMessage',
    endUser: sessionAccess(),
    answers: { 200: Session },
    run: async ({ tx, services, resource }) => sessionKind.present(await cancelSession(tx, services, resource.id)),
  }),
  takeoverOperation,
  operatorMessageOperation,
  sessions.action('handback', {
    summary: 'Return a session to its agent',
    description:
      'The agent answers again. Turns that waited continue; with auto_generate the agent also answers an end user who wrote last. Not available to background work.',
    action: OPERATE_ACTION,
    internal: true,
    mcp: true,
    body: HandbackInput,
    bodyOptional: true,
    answers: { 200: HandedBack },
    raises: [
      'AGENT_NOT_FOUND',
      'AI_PROVIDER_MISCONFIGURED',
      'MODEL_ROUTE_NOT_FOUND',
      'PROJECT_PAUSED',
      ...spendRefusals,
      'SESSION_CLOSED',
      'SESSION_EXPIRED',
      'SESSION_NOT_UNDER_OPERATOR',
    ],
    decision: ({ caller }) => ({ decision: 'handed_back', operator_id: caller.user.id }),
    async run(context) {
      const { session, generation_id } = await handBack(context)
      return { ...sessionKind.present(session), generation_id }
    },
  }),
  sessions.action('attention', {
    id: 'requestHuman',
    command: ['sessions', 'request-human'],
    summary: 'Request a person for a session',
    description:
      'Marks the session for operators and files an exception. The agent continues to answer until a person takes over. Called by a turn of a session, it applies to that session.',
    action: 'sessions:RequestHuman',
    contextParameters: { session_id: 'sessionId' },
    body: AttentionInput,
    answers: { 200: Session },
    raises: ['SESSION_CLOSED', 'SESSION_EXPIRED'],
    run: async context => sessionKind.present(await requestHuman(context)),
  }),
  sessions.action('fork', {
    summary: 'Fork a session',
    description:
      'Creates a session with the messages of another one. Messages are copied, turns are not; the sessions are then independent.',
    action: 'sessions:GetSession',
    alsoActions: ['sessions:CreateSession'],
    body: ForkInput,
    bodyOptional: true,
    answers: { 201: Session },
    raises: ['AGENT_NOT_FOUND', 'INVALID_TOOL_CONTEXT_KEY'],
    async run({ tx, services, resource: { id, project_id }, body: input = {}, allow }) {
      allow('sessions:CreateSession', { kind: anySession, project_id, tags: input.tags ?? {} })
      const toolContext =
        input.tool_context === undefined
          ? undefined
          : callerContext(input.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
      return sessionKind.present(await forkSession(tx, id, input, toolContext))
    },
  }),
  listForks,
  actorOverviewOperation,
  streamOperation,
  sessionTicketOperation,
  typingOperation,
  readOperation,
  ...sessions.tags({ event: 'tags_updated' }),
]
