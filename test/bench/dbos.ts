import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { DBOS } from '@dbos-inc/dbos-sdk'

/**
 * Ten durable steps, each one a request, as a workflow of DBOS in a separate process: the reference for
 * orchestrations. `POST /run` answers when a workflow has ended in this process; `POST /queued` when another took it from a queue.
 * With the argument `worker` it takes queued workflows.
 */
const STEPS = 10
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
  const handle = await DBOS.startWorkflow(workflow, request.url === '/queued' ? { queueName: QUEUE } : {})()
  const results = (await handle.getResult()) as unknown[]
  response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify({ results: results.length }))
})
server.listen(0, '127.0.0.1', () =>
  console.log(JSON.stringify({ msg: 'floor is ready', port: (server.address() as AddressInfo).port })),
)
