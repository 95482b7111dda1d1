import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { DBOS } from '@dbos-inc/dbos-sdk'

/**
 * Durable steps as workflows of DBOS in a separate process, the reference for durable work. `POST /run` answers when a workflow of ten
 * steps, each a request, has ended in this process; `POST /queued` when another process took it from a queue; `POST /fan` after fifty
 * concurrent workflows of one such step; `POST /turn` after one step that calls the model; `POST /step` after one step that does nothing. With the argument `worker` it takes queued workflows.
 */
const STEPS = 10
const FAN = 50
const QUEUE = 'bench'
const address = process.env.TOOL_URL as string

const call = async (): Promise<unknown> => (await fetch(address)).json()

const workflow = DBOS.registerWorkflow(
  async () => {
    const results: unknown[] = []
    for (let step = 0; step < STEPS; step++) results.push(await DBOS.runStep(call, { name: `step${step}` }))
    return results
  },
  { name: 'steps' },
)

const complete = async (): Promise<unknown> => {
  const answer = await fetch(`${process.env.MODEL_URL}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'double-1', messages: [{ role: 'user', content: 'hello' }] }),
  })
  return answer.json()
}

const turn = DBOS.registerWorkflow(async () => [await DBOS.runStep(complete, { name: 'complete' })], { name: 'turn' })
const step = DBOS.registerWorkflow(async () => [await DBOS.runStep(async () => 1, { name: 'nothing' })], {
  name: 'step',
})
const single = DBOS.registerWorkflow(async () => [await DBOS.runStep(call, { name: 'call' })], { name: 'single' })
const fan = DBOS.registerWorkflow(
  async () => {
    const handles = await Promise.all(Array.from({ length: FAN }, () => DBOS.startWorkflow(single)()))
    return Promise.all(handles.map(handle => handle.getResult()))
  },
  { name: 'fan' },
)
const byPath: Record<string, typeof workflow> = { '/turn': turn, '/step': step, '/fan': fan }

const isWorker = process.argv[2] === 'worker'

DBOS.setConfig({
  name: 'bench',
  systemDatabaseUrl: process.env.DATABASE_URL,
  systemDatabasePoolSize: 20,
  logLevel: 'error',
  applicationVersion: 'one',
  executorID: isWorker ? 'worker' : 'web',
  listenQueues: isWorker ? [QUEUE] : [],
})
await DBOS.launch()
await DBOS.registerQueue(QUEUE)

const server = createServer(async (request, response) => {
  const started = byPath[request.url ?? ''] ?? workflow
  const handle = await DBOS.startWorkflow(started, request.url === '/queued' ? { queueName: QUEUE } : {})()
  const results = (await handle.getResult()) as unknown[]
  response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify({ results: results.length }))
})
server.listen(0, '127.0.0.1', () =>
  console.log(JSON.stringify({ msg: 'floor is ready', port: (server.address() as AddressInfo).port })),
)
