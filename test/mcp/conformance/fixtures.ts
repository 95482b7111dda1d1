import { z } from 'zod'
import { actorKind } from '#conversation/actors/model.ts'
import { type LongWork, longWork, type WorkState, workInProgress } from '#core/api/long-work.ts'
import { itemOperation } from '#core/api/operation.ts'
import type { Module } from '#core/modules/module.ts'
import { invokeInSession } from '#mcp/invoke.ts'
import { type ResourceSource, resourcePoint } from '#mcp/resources.ts'
import { acceptsTasks, type McpClientSession, MISSING_CAPABILITY, RpcError } from '#mcp/session.ts'
import { readTaskState, taskOf } from '#mcp/tasks.ts'
import { type FixedTool, toolArgumentsSchema, toolPoint } from '#mcp/tools.ts'

/** Tools and resources that the conformance suite requires, only for the test process. */

const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=='
const WAV = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=='

const text = (value: string) => ({ content: [{ type: 'text', text: value }] })
const pause = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

const tool = (name: string, run: FixedTool['run'], schema: z.ZodType = z.object({})): FixedTool => ({
  name,
  title: name,
  description: `The suite's ${name}`,
  inputSchema: toolArgumentsSchema(schema),
  annotations: { title: name },
  run,
})

const resource = (uri: string, mimeType: string, value: string) => ({
  type: 'resource',
  resource: { uri, mimeType, text: value },
})

const plain: FixedTool[] = [
  tool('test_simple_text', async () => text('This is a simple text response for testing.')),
  tool('test_image_content', async () => ({ content: [{ type: 'image', data: PNG, mimeType: 'image/png' }] })),
  tool('test_audio_content', async () => ({ content: [{ type: 'audio', data: WAV, mimeType: 'audio/wav' }] })),
  tool('test_embedded_resource', async () => ({
    content: [resource('test://embedded-resource', 'text/plain', 'This is an embedded resource content.')],
  })),
  tool('test_multiple_content_types', async () => ({
    content: [
      { type: 'text', text: 'Multiple content types test:' },
      { type: 'image', data: PNG, mimeType: 'image/png' },
      resource('test://mixed-content-resource', 'application/json', '{"test":"data","value":123}'),
    ],
  })),
  tool('test_error_handling', async () => ({
    ...text('This tool intentionally returns an error for testing'),
    isError: true,
  })),
  tool('test_tool_with_progress', async (_session, _args, { params, notify }) => {
    const progressToken = (params._meta as { progressToken?: unknown } | undefined)?.progressToken
    for (const progress of [0, 50, 100]) {
      if (progressToken !== undefined) notify('notifications/progress', { progressToken, progress, total: 100 })
      await pause(50)
    }
    return text('done')
  }),
  tool('test_missing_capability', async ({ capabilities }) => {
    if (capabilities.sampling === undefined)
      throw new RpcError(MISSING_CAPABILITY, 'sampling is needed', { requiredCapabilities: { sampling: {} } })
    return text('sampled')
  }),
  tool('test_logging_tool', async () => text('nothing is logged to clients')),
  tool('test_streaming_elicitation', async (_session, _args, { notify }) => {
    notify('notifications/progress', { progressToken: 'none', progress: 1 })
    return text('the server sends no requests to clients')
  }),
  tool(
    'greet',
    async (_session, { name }) => text(`Hello, ${name}!`),
    z.object({ name: z.string().describe('Whom to greet') }),
  ),
]

/** Work of the suite: an actor stands for each. */
type Job = { ends: number; cancelled: boolean; fails: boolean; asks: Map<string, Record<string, unknown> | null> }
const jobs = new Map<string, Job>()

const form = {
  type: 'object',
  properties: { confirm: { type: 'boolean' }, name: { type: 'string' } },
  required: ['confirm'],
}

const jobWork: LongWork = {
  kind: 'actor',
  read: 'getActor',
  cancel: 'cancelJob',
  args: id => ({ actor_id: id }),
  async state(_view, row): Promise<WorkState> {
    const job = jobs.get(row.id) as Job
    const message = 'The job'
    if (job.cancelled) return { status: 'cancelled', message }
    const asked = [...job.asks].filter(([, answer]) => answer === null)
    if (asked.length > 0)
      return workInProgress(
        message,
        asked.map(([key]) => ({
          key,
          message: `Answer ${key}`,
          form,
          operation: 'answerJob',
          permission: { action: 'actors:UpdateActor', target: { kind: actorKind, row } },
          accepted: content => ({ args: { actor_id: row.id, key, content } }),
          declined: () => null,
        })),
      )
    if (Date.now() < job.ends) return workInProgress(message)
    return {
      status: 'completed',
      message,
      result: job.fails ? { failure: { code: 'GENERATION_FAILED', message: 'It failed' } } : { body: { done: true } },
    }
  },
}

const cancelJob = itemOperation(actorKind, {
  id: 'cancelJob',
  method: 'post',
  path: '/actors/{actor_id}/cancel-job',
  summary: 'Cancel a job',
  tag: 'Actors',
  action: 'actors:UpdateActor',
  answers: { 204: null },
  async run({ resource }) {
    ;(jobs.get(resource.id) as Job).cancelled = true
  },
})

const answerJob = itemOperation(actorKind, {
  id: 'answerJob',
  method: 'post',
  path: '/actors/{actor_id}/answer-job',
  summary: 'Answer a job',
  tag: 'Actors',
  action: 'actors:UpdateActor',
  body: z.strictObject({
    key: z.string().describe('What is answered'),
    content: z.record(z.string(), z.unknown()).describe('The answer'),
  }),
  answers: { 204: null },
  async run({ resource, body }) {
    ;(jobs.get(resource.id) as Job).asks.set(body.key, body.content)
  },
})

async function begin(
  session: McpClientSession,
  given: Partial<Omit<Job, 'asks'>> & { asks?: string[]; seconds?: number },
) {
  const made = await invokeInSession(session, 'createActor', { name: 'job' })
  const { id } = made.body as { id: string }
  const asks = new Map((given.asks ?? []).map(key => [key, null]))
  jobs.set(id, { ends: Date.now() + (given.seconds ?? 0) * 1000, cancelled: false, fails: given.fails ?? false, asks })
  const seen = await readTaskState(session, id)
  if (!seen) throw new Error('the job is gone')
  return { id, task: { resultType: 'task', ...taskOf(session, seen) } }
}

const requiresTasks = (session: McpClientSession): void => {
  if (!acceptsTasks(session))
    throw new RpcError(MISSING_CAPABILITY, 'the tool is answered by a task', {
      requiredCapabilities: { extensions: { 'io.modelcontextprotocol/tasks': {} } },
    })
}

const working: FixedTool[] = [
  tool(
    'slow_compute',
    async (session, args) => {
      const seconds = Number(args.seconds ?? 0)
      if (!acceptsTasks(session)) {
        await pause(seconds * 1000)
        return text('computed')
      }
      return (await begin(session, { seconds })).task
    },
    z.object({ seconds: z.number().describe('How long'), label: z.string().optional().describe('A label') }),
  ),
  tool('failing_job', async session => {
    requiresTasks(session)
    return (await begin(session, { seconds: 1, fails: true })).task
  }),
  tool('protocol_error_job', async session => {
    const { id, task } = await begin(session, { seconds: 60 })
    await invokeInSession(session, 'deleteActor', { actor_id: id })
    return task
  }),
  tool(
    'confirm_delete',
    async session => (await begin(session, { asks: ['confirm'] })).task,
    z.object({ filename: z.string().optional().describe('What is deleted') }),
  ),
  tool('multi_input', async session => (await begin(session, { asks: ['first', 'second'] })).task),
]

const contents: Record<string, Record<string, unknown>> = {
  'test://static-text': { mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
  'test://static-binary': { mimeType: 'image/png', blob: PNG },
}

const testResources: ResourceSource = {
  list: async (_session, { offset }) =>
    offset > 0
      ? []
      : Object.entries(contents).map(([uri, { mimeType }]) => ({
          id: uri,
          created_at: '2026-01-01T00:00:00.000Z',
          resource: { uri, name: uri, mimeType },
        })),
  templates: [{ uriTemplate: 'test://template/{id}/data', name: 'template', mimeType: 'application/json' }],
  async read(_session, uri) {
    const [, id] = /^test:\/\/template\/(\w+)\/data$/.exec(uri) ?? []
    if (!id) return contents[uri] ?? null
    return {
      mimeType: 'application/json',
      text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }),
    }
  },
}

export const fixtures: Omit<Module, 'name'> = {
  operations: [cancelJob, answerJob],
  extensions: [toolPoint.with([...plain, ...working]), resourcePoint.with(testResources), longWork.with(jobWork)],
}
