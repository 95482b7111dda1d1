import type { Gates } from './gates.ts'
import { ruleMatches } from './match.ts'
import type { DoubleRequest, RequestKind } from './request.ts'
import type { Reply, Script } from './script.ts'
import { ruleId } from './script.ts'

/** A lane: its script and its counters. `scripted` distinguishes a lane that was written from one that a request created. */
export type Lane = {
  name: string
  scripted: boolean
  script: Script
  calls: Record<RequestKind, number>
  /** Uses of each rule, by its place in the script. */
  used: number[]
  /** Requests that met the script's scripted trouble with embeddings. */
  troubled: number
}

/** A lane as the control route shows it. */
export type LaneState = { script: Script; calls: number; rules: { id: string; used: number }[] }

/** The lanes of one server. */
export type Lanes = ReturnType<typeof createLanes>

/** Makes an empty set of lanes whose scripts name their gates in `gates`. */
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

    /** The lane of that name, brought up empty when there is none. */
    get(name: string): Lane {
      return lanes.get(name) ?? put({ lane: name }, false)
    },

    /** The lane of that name when it is known. */
    find(name: string): Lane | undefined {
      return lanes.get(name)
    },

    /** Returns whether a lane of that name has a script. */
    scripted(name: string): boolean {
      return lanes.get(name)?.scripted === true
    },

    /** Deletes a lane. Returns whether there was one. */
    drop(name: string): boolean {
      return lanes.delete(name)
    },

    /** Forgets all lanes. */
    reset(): void {
      lanes.clear()
    },
  }
}

/** What the control route shows of a lane. */
export function laneState(lane: Lane): LaneState {
  return {
    script: lane.script,
    calls: lane.calls.chat + lane.calls.embeddings,
    rules: (lane.script.rules ?? []).map((rule, index) => ({ id: ruleId(rule, index), used: lane.used[index] })),
  }
}

/** Takes the next reply of the first rule that matches and is not used up, and counts the use. */
export function nextReply(lane: Lane, request: DoubleRequest): { id: string; index: number; reply: Reply } | undefined {
  for (const [place, rule] of (lane.script.rules ?? []).entries()) {
    const replies = rule.replies ?? [rule.reply!]
    const used = lane.used[place]
    if (rule.times !== undefined && used >= rule.times) continue
    if (rule.then === 'end' && used >= replies.length) continue
    if (!ruleMatches(rule.when, request)) continue
    lane.used[place] += 1
    const index = rule.then === 'cycle' ? used % replies.length : Math.min(used, replies.length - 1)
    return { id: ruleId(rule, place), index, reply: replies[index] }
  }
  return undefined
}

/** A reply with the lane's defaults under it. */
export function withDefaults(lane: Lane, reply: Reply): Reply {
  const defaults = lane.script.defaults
  if (!defaults) return reply
  const merged = { ...defaults, ...reply }
  // Content given by the reply replaces the default content whatever its form.
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
