import stateSchema from 'fields:createWorkflow.states'
import onEnterSchema from 'fields:createWorkflow.states.on_enter'
import dispatchSchema from 'fields:createWorkflow.states.on_enter.dispatch'
import ruleSchema from 'fields:createWorkflow.states.on_enter.on_complete'
import retrySchema from 'fields:createWorkflow.states.on_enter.retry'
import transitionSchema from 'fields:createWorkflow.transitions'
import { useState } from 'react'
import { failureOf } from '#api.ts'
import type { Choice } from '#choices.ts'
import type { Values } from '#components/schema-form.tsx'
import { visible } from '#components/text.tsx'
import { workflowGraph as draw } from '#graph/workflow-graph.ts'
import { isObject } from '#json.ts'
import * as strings from '#strings.ts'
import { type Field, fieldOf, valueAt, withValue } from './fields.ts'
import { type Available, entriesOf, type GraphKind, keysOf, sourcesOf } from './kind.ts'

const texts = strings.editor

/** The smallest board that is of use. */
const EXAMPLE = {
  states: [
    { name: 'to do', initial: true },
    { name: 'in progress', kind: 'human' },
    { name: 'done', terminal: true },
  ],
  transitions: [
    { name: 'start', from: ['to do'], to: 'in progress' },
    { name: 'finish', from: ['in progress'], to: 'done' },
    { name: 'reopen', from: ['in progress'], to: 'to do' },
  ],
}

const MAX_NAME = 255

/** Fields of the target of a dispatch, by its kind. */
const TARGETS: Record<string, string> = {
  agent: 'agent_id',
  orchestration: 'orchestration_id',
  tool: 'tool_id',
  trigger: 'trigger_id',
}

const SCHEMA = {
  properties: {
    states: {
      items: {
        ...stateSchema,
        properties: {
          ...stateSchema.properties,
          on_enter: {
            ...onEnterSchema,
            properties: {
              ...onEnterSchema.properties,
              dispatch: dispatchSchema,
              retry: retrySchema,
              on_complete: { items: ruleSchema },
            },
          },
        },
      },
    },
    transitions: { items: transitionSchema },
    payload_schema: { type: 'object', description: texts.payloadSchema },
  },
}

const choicesOf = (names: readonly string[]): Choice[] => names.map(value => ({ value, label: visible(value) }))

const transitionNames = (definition: Values): string[] =>
  entriesOf(definition, 'transitions')
    .map(({ name }) => name)
    .filter(name => typeof name === 'string')

/** Returns the first unused name. */
function unused(name: string, isUsed: (name: string) => boolean): string {
  for (let count = 1; ; count++) {
    const each = count === 1 ? name : `${name} ${count}`
    if (!isUsed(each)) return each
  }
}

function nodeFields(definition: Values, state: Values): Field[] {
  const { kind, terminal } = state
  const transitions = choicesOf(
    entriesOf(definition, 'transitions')
      .filter(transition => sourcesOf(transition).includes(String(state.name)))
      .map(({ name }) => String(name)),
  )
  const work = valueAt(state, 'on_enter.dispatch.kind')
  const dispatch = (name: string, more?: Partial<Field>) =>
    fieldOf(`on_enter.dispatch.${name}`, dispatchSchema.properties?.[name], more)
  const retry = (name: string) => fieldOf(`on_enter.retry.${name}`, retrySchema.properties?.[name], { isMore: true })
  const target = TARGETS[String(work)]
  return [
    ...['initial', 'terminal', 'kind'].map(name => fieldOf(name, stateSchema.properties?.[name])),
    ...(work === undefined && (kind === 'human' || terminal === true) ? [] : [dispatch('kind')]),
    ...(target
      ? [
          dispatch(target),
          ...(work === 'tool' ? [dispatch('operation_id')] : []),
          dispatch('input_mapping'),
          dispatch('payload_writes'),
          fieldOf('on_enter.on_complete', onEnterSchema.properties?.on_complete, {
            input: 'rules',
            choices: transitions,
          }),
          fieldOf('on_enter.on_failure', onEnterSchema.properties?.on_failure, { choices: transitions }),
          ...['max_attempts', 'backoff_seconds', 'backoff_multiplier'].map(retry),
        ]
      : []),
    fieldOf('stalled_after', stateSchema.properties?.stalled_after, { isMore: true }),
  ]
}

function edgeFields(definition: Values): Field[] {
  const { properties = {} } = transitionSchema
  const states = choicesOf(keysOf(workflowGraph, definition))
  return [
    fieldOf('from', properties.from, { choices: states }),
    fieldOf('to', properties.to, { choices: states }),
    fieldOf('requires_approval', properties.requires_approval),
    fieldOf('guard', properties.guard, { input: 'expression' }),
  ]
}

const TASK = ['title', 'state', 'status', 'assignee', 'id', 'last_result', 'payload'] as const

/** Values that expressions of a field of a state or a transition can read. */
function available({ payload_schema }: Values, _part: Values, field: string): Available[] {
  const { properties } = (payload_schema ?? {}) as Values
  const task = [
    ...Object.keys(isObject(properties) ? properties : {}).map(name => ({
      name: `task.payload.${name}`,
      about: texts.ofPayload,
    })),
    ...TASK.map(name => ({ name: `task.${name}`, about: texts.ofTask })),
  ]
  if (field === 'guard')
    return [
      ...task,
      { name: 'transition.name', about: texts.ofTransition },
      { name: 'principal.kind', about: texts.ofPrincipal },
      { name: 'principal.id', about: texts.ofPrincipal },
    ]
  return field.endsWith('input_mapping') ? task : [{ name: 'result', about: texts.ofResult }, ...task]
}

/** Texts of the values at a path, beyond the schema. */
function textsAt(definition: Values, path: readonly (string | number)[]): Choice[] | undefined {
  const choices = (values: readonly string[]) => values.map(value => ({ value, label: '' }))
  const [list, index] = path
  const last = path.at(-1)
  if (list === 'transitions' && (path[2] === 'from' || last === 'to')) return choices(keysOf(workflowGraph, definition))
  if (last === 'transition' || last === 'on_failure') return choices(transitionNames(definition))
  if (last !== 'var') return undefined
  const part = entriesOf(definition, String(list))[Number(index)] ?? {}
  const field = path.find(step => ['guard', 'input_mapping', 'payload_writes', 'on_complete'].includes(String(step)))
  return available(definition, part, String(field)).map(({ name, about }) => ({ value: name, label: about }))
}

/** Problems of a definition that is written as JSON; the service finds all when the workflow is saved. */
function check(definition: Values) {
  const known = new Set(keysOf(workflowGraph, definition))
  const states = entriesOf(definition, 'states')
  const initial = states.filter(state => state.initial === true).length
  const unknown = entriesOf(definition, 'transitions').flatMap((transition, index) =>
    [...sourcesOf(transition), String(transition.to)]
      .filter(name => !known.has(name))
      .map(name => ({
        code: 'UNKNOWN_STATE',
        path: `transitions[${index}]`,
        message: texts.unknownState(visible(name)),
      })),
  )
  const count = { code: 'INITIAL_STATE_COUNT', path: 'states', message: texts.initialStates(initial) }
  return states.length > 0 && initial !== 1 ? [count, ...unknown] : unknown
}

/** The service checks a workflow when it is saved: its problems hold for the definition that was sent. */
function useFindings(_projectId: string, definition: Values | null, refusal: unknown) {
  const [refused, setRefused] = useState<{ refusal: unknown; definition: Values | null }>({ refusal: null, definition })
  if (refusal !== refused.refusal) setRefused({ refusal, definition })
  const problems = refusal && refused.definition === definition ? (failureOf(refusal).problems ?? []) : []
  const found = problems.map(problem => ({ code: '', ...problem }))
  return { findings: { problems: found.length > 0 ? found : definition ? check(definition) : [], warnings: [] } }
}

/** One state is initial; work on entry has one target, and none without a kind. */
function settled(definition: Values, name: string): Values {
  const states = entriesOf(definition, 'states')
  const isInitial = states.some(state => state.name === name && state.initial === true)
  return {
    ...definition,
    states: states.map(state => {
      if (state.name !== name)
        return isInitial && state.initial === true ? withValue(state, 'initial', undefined) : state
      const kind = valueAt(state, 'on_enter.dispatch.kind')
      if (kind === undefined) return withValue(state, 'on_enter', undefined)
      return Object.entries(TARGETS).reduce(
        (each, [other, field]) => (other === kind ? each : withValue(each, `on_enter.dispatch.${field}`, undefined)),
        state,
      )
    }),
  }
}

/** A definition whose states name a transition by another name. */
function withTransition(definition: Values, before: string, after: string): Values {
  const rename = (name: unknown) => (name === before ? after : name)
  const states = entriesOf(definition, 'states').map(state => {
    if (!isObject(state.on_enter)) return state
    const { on_complete, on_failure, ...rest } = state.on_enter
    const rules = Array.isArray(on_complete)
      ? on_complete.map(rule => (isObject(rule) ? { ...rule, transition: rename(rule.transition) } : rule))
      : on_complete
    return {
      ...state,
      on_enter: {
        ...rest,
        ...(on_complete === undefined ? {} : { on_complete: rules }),
        ...(on_failure === undefined ? {} : { on_failure: rename(on_failure) }),
      },
    }
  })
  return { ...definition, states }
}

/** Workflows: states, and transitions with names. */
export const workflowGraph: GraphKind = {
  lists: { nodes: 'states', edges: 'transitions' },
  key: 'name',
  palette: Object.entries(texts.stateTypes).map(([type, { name, about }]) => ({
    type,
    name,
    about,
    start:
      type === 'initial' || type === 'terminal'
        ? { [type]: true }
        : type === 'human'
          ? { kind: 'human' }
          : type === 'state'
            ? {}
            : { on_enter: { dispatch: { kind: type } } },
  })),
  fields: ['states', 'transitions', 'payload_schema'],
  example: EXAMPLE,
  schema: SCHEMA,
  keyProblem: key => (key.trim() !== '' && key.length <= MAX_NAME ? null : texts.nameHelp),
  newKey: (start, isUsed) =>
    unused(
      start.initial ? texts.newStates.initial : start.terminal ? texts.newStates.terminal : texts.newStates.other,
      isUsed,
    ),
  draw,
  connect: (definition, from, to) => {
    const names = new Set(transitionNames(definition))
    return { name: unused(texts.transitionTo(to).slice(0, 240), name => names.has(name)), from: [from], to }
  },
  // A transition that is named by its target follows the name of the target.
  renamed(definition, before, after) {
    const [own, next] = [texts.transitionTo(before), texts.transitionTo(after)]
    const names = transitionNames(definition)
    if (!names.includes(own) || names.includes(next)) return definition
    const transitions = entriesOf(definition, 'transitions').map(each =>
      each.name === own ? { ...each, name: next } : each,
    )
    return withTransition({ ...definition, transitions }, own, next)
  },
  nodeFields,
  edgeFields,
  available,
  texts: textsAt,
  keys: () => undefined,
  edgeKey: 'name',
  renamedEdge: withTransition,
  useFindings,
  settled,
}
