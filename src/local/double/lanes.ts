import type { Gates } from './gates.ts'
import { ruleMatches } from './match.ts'
import type { DoubleRequest, RequestKind } from './request.ts'
import type { Reply, Script } from './script.ts'
import { ruleId } from './script.ts'

/** A lane with its script and counters. `scripted` is false for a lane created by a request. */
export type Lane = {
  name: string
  scripted: boolean
  script: Script
  calls: Record<RequestKind, number>
  /** Number of uses of each rule, by its index in the script. */
  used: number[]
  /** Number of embedding requests that received the scripted fault. */
  troubled: number
}

/** A lane in the format of the control route. */
export type LaneState = { script: Script; calls: number; rules: { id: string; used: number }[] }

/** The lanes of one server. */
export type Lanes = ReturnType<typeof createLanes>

/** Creates an empty set of lanes, which register the gates of their scripts in `gates`. */
export function createLanes(gates: Gates) {
  const lanes = new Map<string, Lane>()

  function put(script: Script, scripted = true): Lane {
    const lane: Lane = {
      name: script.lane,
      scripted,
      script,
      calls: { chat: 0, embeddings: 0 },
      used: (script.rules ?? []).map(() => 0),
      troubled: 0,
    }
    lanes.set(lane.name, lane)
    for (const gate of gatesOf(script)) gates.name(gate, lane.name)
    return lane
  }

  return {
    put,

    /** Returns the lane of a name, created empty if it does not exist. */
    get(name: string): Lane {
      return lanes.get(name) ?? put({ lane: name }, false)
    },

    /** Returns the lane of a name, undefined if it does not exist. */
    find(name: string): Lane | undefined {
      return lanes.get(name)
    },

    /** Whether a lane of that name has a script. */
    hasScript(name: string): boolean {
      return lanes.get(name)?.scripted === true
    },

    /** Deletes a lane. Returns whether it existed. */
    drop(name: string): boolean {
      return lanes.delete(name)
    },

    /** Deletes all lanes. */
    reset(): void {
      lanes.clear()
    },
  }
}

/** Returns a lane in the format of the control route. */
export function laneState(lane: Lane): LaneState {
  return {
    script: lane.script,
    calls: lane.calls.chat + lane.calls.embeddings,
    rules: (lane.script.rules ?? []).map((rule, index) => ({ id: ruleId(rule, index), used: lane.used[index] })),
  }
}

/** Returns the next reply of the first matching rule with remaining uses, and counts the use. */
export function nextReply(lane: Lane, request: DoubleRequest): { id: string; index: number; reply: Reply } | undefined {
  for (const [position, rule] of (lane.script.rules ?? []).entries()) {
    const replies = rule.replies ?? [rule.reply!]
    const used = lane.used[position]
    if (rule.times !== undefined && used >= rule.times) continue
    if (rule.then === 'end' && used >= replies.length) continue
    if (!ruleMatches(rule.when, request)) continue
    lane.used[position] += 1
    const index = rule.then === 'cycle' ? used % replies.length : Math.min(used, replies.length - 1)
    return { id: ruleId(rule, position), index, reply: replies[index] }
  }
  return undefined
}

/** Completes a reply with the defaults of its lane. */
export function withDefaults(lane: Lane, reply: Reply): Reply {
  const defaults = lane.script.defaults
  if (!defaults) return reply
  const merged = { ...defaults, ...reply }
  // Content of the reply replaces default content of any form.
  if (reply.text !== undefined || reply.object !== undefined || reply.chunks !== undefined)
    for (const key of ['text', 'object', 'chunks'] as const) if (reply[key] === undefined) delete merged[key]
  return merged
}

function gatesOf(script: Script): string[] {
  const replies = (script.rules ?? []).flatMap(rule => rule.replies ?? [rule.reply!])
  return [script.defaults, ...replies, script.fallback, script.embeddings]
    .map(each => each?.gate)
    .filter(gate => gate !== undefined)
}
