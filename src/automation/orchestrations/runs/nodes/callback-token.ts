import { createHash } from 'node:crypto'
import { isAllowed } from '#core/api/access.ts'
import { inCell } from '#core/base/current-cell.ts'
import { withCell } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { CallerFacts } from '#core/iam/caller.ts'
import { listCallbacks, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { type OrchestrationRunRecord, runKind } from '../model.ts'

/**
 * A webhook node has a one-time callback URL. Its token is derived from a key of the deployment, so that the URL can be
 * shown although only the hash of the token is stored. Deleting the hash revokes the token.
 */

type Wait = Pick<NodeExecutionRow, 'run_id' | 'node_id'>

const tokensOf = ({ secrets }: Pick<Services, 'secrets'>, { run_id, node_id }: Wait): string[] =>
  secrets.derived('orchestration callback', `${run_id} ${node_id}`).map(secret => `rcb_${withCell(secret)}`)

export const tokenHash = (token: string): string => createHash('sha256').update(token).digest('hex')

/** Returns the hash that is stored when a wait starts. */
export const callbackHash = (services: Services, wait: Wait): string => tokenHash(tokensOf(services, wait)[0])

/** Returns the tokens of a wait that may have begun in another cell, before its project was moved. */
const everyTokenOf = (services: Services, wait: Wait): string[] =>
  services.cells?.all().flatMap(({ number }) => inCell(number, () => tokensOf(services, wait))) ??
  tokensOf(services, wait)

/** Adds the callback URLs of webhook nodes to runs, if the caller may submit their input. */
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
  const stored = await listCallbacks(
    services.pool,
    waiting.map(({ id }) => id),
  )
  const urls = new Map(
    stored.map(wait => {
      // A token derived from a removed key still works, but its URL can no longer be shown.
      const token = everyTokenOf(services, wait).find(candidate => tokenHash(candidate) === wait.callback_hash)
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
