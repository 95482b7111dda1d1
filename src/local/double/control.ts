import { doubleErrorBody } from './exchange.ts'
import type { Gates } from './gates.ts'
import type { Lanes } from './lanes.ts'
import { laneState } from './lanes.ts'
import type { Log } from './log.ts'
import { isJsonObject } from './request.ts'
import { checkScript, readDocuments } from './script.ts'

/** State of one server. */
export type DoubleState = { lanes: Lanes; gates: Gates; log: Log; dims: number; strict: boolean }

/** An answer of a control route. */
export type ControlAnswer = { status: number; body: unknown }

const done: ControlAnswer = { status: 200, body: { ok: true } }

/**
 * Answers a route under /control. `path` contains the decoded segments after it, `body` the text of a PUT. Returns
 * undefined for an unknown route.
 */
export function controlRequest(
  state: DoubleState,
  method: string,
  path: string[],
  query: URLSearchParams,
  body: string,
): ControlAnswer | undefined {
  const { lanes, gates, log } = state
  const [group, name, verb] = path
  switch (`${method} ${group}/${path.length}`) {
    case 'PUT lanes/2':
      return putLane(state, name, body)
    case 'GET lanes/2': {
      const lane = lanes.find(name)
      return lane && { status: 200, body: laneState(lane) }
    }
    case 'DELETE lanes/2':
      lanes.drop(name)
      log.drop(name)
      gates.drop(name)
      return done
    case 'POST reset/1':
      lanes.reset()
      log.reset()
      gates.reset()
      return done
    case 'GET requests/1':
      return listRequests(log, query)
    case 'GET gates/1':
      return { status: 200, body: { data: gates.list() } }
    case 'POST gates/3':
      if (verb === 'open') return { status: 200, body: gates.open(name) }
      if (verb === 'close') return { status: 200, body: gates.close(name) }
      return undefined
    default:
      return undefined
  }
}

function putLane(state: DoubleState, name: string, body: string): ControlAnswer {
  const { values, problems } = readDocuments(body)
  if (problems.length > 0) return invalid(problems)
  if (values.length !== 1 || !isJsonObject(values[0])) return invalid(['document: must be one script'])
  if ((values[0].lane ?? name) !== name) return invalid([`lane: must be "${name}" or omitted`])
  const checked = checkScript({ ...values[0], lane: name })
  if (!checked.script) return invalid(checked.problems)
  return { status: 200, body: laneState(state.lanes.put(checked.script)) }
}

function invalid(problems: string[]): ControlAnswer {
  return { status: 400, body: { ...doubleErrorBody(problems.join('; '), 'invalid_script'), problems } }
}

function listRequests(log: Log, query: URLSearchParams): ControlAnswer {
  const after = query.get('after')
  if (after !== null && !/^\d+$/.test(after))
    return { status: 400, body: doubleErrorBody('after must be an arrival number', 'invalid_request_error') }
  return {
    status: 200,
    body: {
      data: log.list({
        lane: query.get('lane') ?? undefined,
        kind: query.get('kind') ?? undefined,
        after: after === null ? undefined : Number(after),
      }),
    },
  }
}
