import { createHash } from 'node:crypto'
import { isAllowed } from '../../../core/iam/access.ts'
import type { CallerFacts } from '../../../core/iam/caller.ts'
import type { Services } from '../../../core/process/services.ts'
import { callbacksOf, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { type OrchestrationRunRecord, runKind } from '../model.ts'

/**
 * The address at which a webhook node takes its answer, once. Its token follows from a key of the deployment, so that readers
 * of the run can be shown it although only its hash is stored; with the hash it ends.
 */

type Wait = Pick<NodeExecutionRow, 'run_id' | 'node_id'>

const tokensOf = ({ secrets }: Pick<Services, 'secrets'>, { run_id, node_id }: Wait): string[] =>
  secrets.derived('orchestration callback', `${run_id} ${node_id}`).map(secret => `rcb_${secret}`)

export const tokenHash = (token: string): string => createHash('sha256').update(token).digest('hex')

/** What is stored of the token of a wait that begins. */
export const callbackHash = (services: Services, wait: Wait): string => tokenHash(tokensOf(services, wait)[0])

/** Runs as a reader sees them: with the addresses at which webhook nodes take an answer, of those that it may answer itself. */
export async function withCallbacks<Run extends OrchestrationRunRecord>(
  services: Services,
  caller: CallerFacts,
  runs: readonly Run[],
): Promise<Run[]> {
  const waiting = runs.filter(
    run =>
      run.required_actions.some(({ type }) => type === 'webhook_receive') &&
      isAllowed(caller, 'orchestrations:SubmitHumanInput', { kind: runKind, row: run }),
  )
  if (waiting.length === 0) return [...runs]
  const stored = await callbacksOf(
    services.pool,
    waiting.map(({ id }) => id),
  )
  const urls = new Map(
    stored.map(wait => {
      // One that was made under a key that is gone still works, but nobody can tell it any more.
      const token = tokensOf(services, wait).find(each => tokenHash(each) === wait.callback_hash)
      return [`${wait.run_id} ${wait.node_id}`, token === undefined ? null : urlOf(services, token)]
    }),
  )
  return runs.map(run => {
    const required_actions = run.required_actions.map(action =>
      action.type === 'webhook_receive'
        ? { ...action, callback_url: urls.get(`${run.id} ${action.node_id}`) ?? null }
        : action,
    )
    return { ...run, required_actions, required_action: required_actions[0] ?? null }
  })
}

const urlOf = ({ config }: Services, token: string): string =>
  `${config.BASE_URL}/api/v1/hooks/orchestration-runs/${token}`
