import { newId } from '#core/base/ids.ts'
import { emitNamed } from '../support/events.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import type { AgeingDeployment } from './ageing.ts'
import { CALLERS } from './turn-load.ts'

/** Work of a deployment whose growth is measured. */

const EVENTS_A_WRITE = 20
const MESSAGES_A_SESSION = 10

const TOOL_CALL = '@double [{"tool_calls":[{"name":"probe","args":{}}]},{"text":"done"}]'

/** Runs `call` that many times, by many concurrent callers. */
export async function together(count: number, call: (n: number) => Promise<unknown>): Promise<void> {
  let next = 0
  const caller = async () => {
    while (next < count) await call(next++)
  }
  await Promise.all(Array.from({ length: CALLERS }, caller))
}

/** Waited turns of an agent. */
export const turns = (deployment: AgeingDeployment, agent: string, prompt: string) => (count: number) =>
  together(count, () => postedBy(deployment.key(), `/agents/${agent}/generate?wait=true`, { prompt }))

/** Waited turns of the agent with a tool, which each call it once. */
export const toolTurns = (deployment: AgeingDeployment) => turns(deployment, deployment.callingId, TOOL_CALL)

/** Messages of sessions, which are waited for with their replies. */
export const messages = (deployment: AgeingDeployment) => (count: number) =>
  together(Math.ceil(count / MESSAGES_A_SESSION), async () => {
    const key = deployment.key()
    const { id } = await createdBy(key, '/sessions', { agent_id: deployment.agentId, auto_generate: true })
    for (let n = 0; n < MESSAGES_A_SESSION; n++)
      await postedBy(key, `/sessions/${id}/messages?wait=true`, { message: 'hello' })
  })

/** Waited runs of a graph of transform nodes in a row. */
export async function runs(deployment: AgeingDeployment, count: number): Promise<(count: number) => Promise<void>> {
  const nodes = Array.from({ length: count }, (_, n) => ({
    id: `t${n}`,
    type: 'transform',
    expression: { '+': [{ var: 'input.n' }, n] },
  }))
  const edges = nodes.slice(1).map(({ id }, n) => ({ from: nodes[n].id, to: id }))
  const { id } = await createdBy(deployment.key(), '/orchestrations', { name: `${count} nodes`, nodes, edges })
  return total =>
    together(total, () =>
      createdBy(deployment.key(), '/orchestration-runs', { orchestration_id: id, input: { n: 1 }, wait: true }),
    )
}

/** Events of an agent with instructions of 400 bytes, some of each transaction. */
export const events = (deployment: AgeingDeployment) => (count: number) =>
  deployment.withServices(async services => {
    const { projectId } = deployment
    for (let sent = 0; sent < count; sent += EVENTS_A_WRITE)
      await services.write(async tx => {
        for (let n = sent; n < Math.min(count, sent + EVENTS_A_WRITE); n++)
          emitNamed(tx, 'agents.updated', projectId, {
            id: newId('agent'),
            project_id: projectId,
            name: `agent ${n}`,
            instructions: 'Answer briefly and name your sources. '.repeat(10),
          } as { id: string })
      })
  })

/** Creates a webhook that receives the events of agents. */
export const subscribe = (deployment: AgeingDeployment) =>
  createdBy(deployment.key(), '/webhooks', { name: 'receiver', url: deployment.receiverUrl, events: ['agents.*'] })
