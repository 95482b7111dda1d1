import { hash } from 'node:crypto'
import { canonicalJson } from '#core/base/canonical.ts'
import { raise } from '#core/base/errors.ts'
import { withToolDefaults } from '#execution/tools/model.ts'
import type { TurnAttempt } from '../loop/turn-attempt.ts'
import { applyPatch, JSON_PATCH_SCHEMA, type PatchOperation } from './json-patch.ts'
import type { TurnTool } from './toolbox.ts'

/** Name of the built-in tool that changes the state shared with the client. */
const UPDATE_STATE = 'update_state'

const DESCRIPTION =
  'Change the state that you share with the client application by a JSON Patch (RFC 6902). All operations apply, or none. Returns the new state.'

const SCHEMA = {
  type: 'object',
  properties: { patch: JSON_PATCH_SCHEMA },
  required: ['patch'],
  additionalProperties: false,
}

/** Limits of a patch. The size exceeds the limit of a state, which is checked after the patch. */
const PATCH_LIMITS = { size: 256 * 1024, work: 1024 * 1024 }

/** A change of the state by the agent, with the digests of the state before and after it. */
export type StateChange = { patch: PatchOperation[]; before: string; after: string }

/** Returns a digest of a state; equal states have equal digests. */
export const stateDigest = (state: unknown): string => hash('sha256', canonicalJson(state ?? {}), 'base64')

/** Returns the tool that changes the state of the session; null for an agent without shared state or without a session. */
export function updateStateTool({ agent, generation, services, context }: TurnAttempt): TurnTool | null {
  const { source } = context
  if (!agent.shared_state || generation.session_id === null || !source?.changeState) return null
  const definition = withToolDefaults({ name: UPDATE_STATE, description: DESCRIPTION, parameters: SCHEMA })
  const patchOf = (input: Record<string, unknown>) => input.patch as PatchOperation[]
  /** By input of a call that succeeded. */
  const changes = new WeakMap<object, StateChange>()
  return {
    name: UPDATE_STATE,
    description: DESCRIPTION,
    schema: SCHEMA,
    validationSchema: null,
    callable: { ...definition, id: null, project_id: agent.project_id, guardrail_ids: null },
    action: null,
    // A patch such as an append has another effect when it is repeated.
    repeatable: false,
    justificationFields: [],
    async perform(input) {
      const patch = patchOf(input)
      let before: unknown
      const state = await source.changeState?.(services, current => {
        before = current
        return applyPatch(current ?? {}, patch, PATCH_LIMITS)
      })
      if (state === undefined) raise('RESOURCE_NOT_FOUND', { meta: { id: generation.session_id } })
      changes.set(input, { patch, before: stateDigest(before), after: stateDigest(state) })
      return { state }
    },
    eventsOf(input) {
      const change = changes.get(input)
      return change ? [{ event: 'state', data: change }] : []
    },
  }
}
