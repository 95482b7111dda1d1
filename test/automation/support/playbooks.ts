import type { PlaybookDefinition, PlaybookStep } from '#automation/playbooks/definition/definition.ts'
import { validatePlaybook } from '#automation/playbooks/definition/validate.ts'
import { evaluate } from '../../support/expressions.ts'
import { type Random, randomOf } from './random.ts'

/** Random playbooks, and what must come of them: step after step in the plainest way, with nothing of the engine. */

/** What the steps of a playbook name. */
export type Cast = { tool: string; orchestration: string; decider: string }

/** What people do with the steps that wait for them, by their keys. */
export type People = Record<string, { skips: boolean; value: number; approves: boolean }>

export type RandomPlaybook = {
  seed: number
  definition: PlaybookDefinition
  fields: Record<string, number>
  people: People
}

const TYPES = [
  'call_tool',
  'call_tool',
  'manual',
  'manual',
  'branch',
  'require_approval',
  'run_orchestration',
  'ask_decider',
  'wait',
] as const

/** A valid playbook of a seed: nodes that no path reaches are drawn again. */
export function randomPlaybook(seed: number, cast: Cast): RandomPlaybook {
  const random = randomOf(seed)
  for (;;) {
    const steps = drawn(random, cast)
    const definition: PlaybookDefinition = {
      steps,
      case_schema: null,
      input_schema: null,
      outcome: { cat: ['came to ', { var: 'case.fields.a' }] },
      resolve_case: random.chance(0.5),
    }
    if (validatePlaybook(definition).length > 0) continue
    const people = Object.fromEntries(
      steps.map(({ key }) => [
        key,
        { skips: random.chance(0.3), value: random.between(0, 9), approves: random.chance(0.6) },
      ]),
    )
    return { seed, definition, fields: { n: random.between(0, 9) }, people }
  }
}

function drawn(random: Random, { tool, orchestration, decider }: Cast): PlaybookStep[] {
  const keys = Array.from({ length: random.between(2, 9) }, (_, index) => `s${index}`)
  return keys.map((key, index): PlaybookStep => {
    const later = keys.slice(index + 1)
    const value = () =>
      random.pick<unknown>([
        random.between(0, 9),
        { var: 'case.fields.n' },
        { var: 'case.fields.a' },
        ...(index > 0 ? [{ var: `steps.${random.pick(keys.slice(0, index))}.output.value` }] : []),
      ])
    const test = () => ({ [random.pick(['<', '>', '=='])]: [value(), value()] })
    const sometimes = (probability: number, fields: () => Partial<PlaybookStep>) =>
      random.chance(probability) ? fields() : {}
    const type = random.pick(TYPES)
    const common = {
      key,
      title: `Step ${key}`,
      type,
      ...sometimes(0.3, () => ({ when: test() })),
      ...sometimes(0.3, () => ({ capture: random.chance(0.5) })),
      ...sometimes(0.4, () => ({ case_writes: { a: random.pick<unknown>([value(), { var: 'output.value' }]) } })),
    }
    if (type === 'branch')
      return {
        ...common,
        rules: Array.from({ length: random.between(1, 3) }, () => ({
          when: test(),
          go_to: random.pick([...later, 'end']),
        })),
        ...sometimes(0.5, () => ({ otherwise: random.pick([...later, 'end']) })),
      }
    const routed = {
      ...common,
      ...sometimes(0.2, () => ({ next: random.pick([...later, 'end']) })),
      ...sometimes(0.4, () => ({ on_failure: random.pick(['continue', ...later]) })),
    }
    switch (type) {
      case 'call_tool':
        return { ...routed, tool_id: tool, input_mapping: { value: value(), fail: random.chance(0.4) } }
      case 'run_orchestration':
        return { ...routed, orchestration_id: orchestration, input_mapping: { value: value() } }
      case 'ask_decider':
        return { ...routed, decider_id: decider }
      case 'manual':
        return { ...routed, ...sometimes(0.3, () => ({ skippable: true })) }
      case 'require_approval':
        return { ...routed, ...sometimes(0.5, () => ({ on_rejected: random.pick(['fail', 'end', ...later]) })) }
      default:
        return { ...routed, until: { cat: ['2001-01-01T00:00:00Z'] } }
    }
  })
}

/** The expected result of an execution. Outputs without the ids that only the platform makes. */
export type Expected = {
  status: 'completed' | 'failed'
  code: string | null
  outcome: string | null
  steps: Record<string, string>
  outputs: Record<string, unknown>
  fields: Record<string, unknown>
  /** Rows of the timeline about steps, in their order. */
  told: string[]
}

type Came = { output: unknown; error: { code: string } | null }

export function interpreted({ definition, fields: given, people }: RandomPlaybook): Expected {
  const { steps } = definition
  const fields: Record<string, unknown> = { ...given }
  const came: Record<string, Came> = {}
  const statuses = Object.fromEntries(steps.map(({ key }) => [key, 'pending']))
  const told: string[] = []
  const root = () => ({ case: { fields }, input: {}, steps: came, execution: {} })
  const place = (key: string) => (key === 'end' ? steps.length : steps.findIndex(step => step.key === key))
  const done = (status: Expected['status'], code: string | null): Expected => ({
    status,
    code,
    outcome: status === 'completed' ? String(evaluate(definition.outcome, root())) : null,
    steps: statuses,
    outputs: Object.fromEntries(
      steps.flatMap(({ key }) => (statuses[key] === 'completed' ? [[key, came[key].output]] : [])),
    ),
    fields,
    told,
  })
  for (let at = 0; at < steps.length; ) {
    const step = steps[at]
    const { key } = step
    const next = place(step.next ?? steps[at + 1]?.key ?? 'end')
    const note = (status: string) => {
      statuses[key] = status
      told.push(`step_${status} ${key}`)
    }
    if (step.when !== undefined && !evaluate(step.when, root())) {
      note('skipped')
      came[key] = { output: null, error: null }
      at = next
      continue
    }
    const result = performed(step, steps, at, root(), people[key])
    if (result.waits) told.push(`step_waiting ${key}`)
    if (result.code !== null) {
      note('failed')
      came[key] = { output: null, error: { code: result.code } }
      const { on_failure = 'fail' } = step
      if (on_failure === 'fail') return done('failed', result.code)
      at = on_failure === 'continue' ? next : place(on_failure)
      continue
    }
    if (result.skipped) {
      note('skipped')
      came[key] = { output: null, error: null }
    } else {
      for (const [name, expression] of Object.entries(step.case_writes ?? {}))
        fields[name] = evaluate(expression, { ...root(), output: result.output })
      note('completed')
      came[key] = { output: result.output, error: null }
    }
    at = result.target === null ? next : place(result.target)
  }
  for (const { key } of steps) if (statuses[key] === 'pending') statuses[key] = 'skipped'
  return done('completed', null)
}

type Result = { output: unknown; code: string | null; target: string | null; waits: boolean; skipped: boolean }

function performed(
  step: PlaybookStep,
  steps: readonly PlaybookStep[],
  at: number,
  root: object,
  person: People[string],
): Result {
  const result = { output: null, code: null, target: null, waits: false, skipped: false }
  const input = () => evaluate(step.input_mapping, root) as { value: unknown; fail?: boolean }
  switch (step.type) {
    case 'call_tool':
      return input().fail ? { ...result, code: 'TOOL_HTTP_ERROR' } : { ...result, output: { value: input().value } }
    case 'run_orchestration':
      return { ...result, output: { x: { result: input().value ?? null } } }
    case 'wait':
      return { ...result, output: { waited_until: '2001-01-01T00:00:00.000Z' } }
    case 'manual':
      return step.skippable && person.skips
        ? { ...result, waits: true, skipped: true }
        : { ...result, waits: true, output: { value: person.value } }
    case 'require_approval':
      if (person.approves) return { ...result, waits: true, output: { decision: 'approved' } }
      return (step.on_rejected ?? 'fail') === 'fail'
        ? { ...result, waits: true, code: 'PLAYBOOK_STEP_FAILED' }
        : { ...result, waits: true, output: { decision: 'rejected' }, target: step.on_rejected as string }
    case 'branch': {
      const rule = step.rules?.find(({ when }) => evaluate(when, root))
      const target = rule?.go_to ?? step.otherwise ?? steps[at + 1]?.key ?? 'end'
      return { ...result, output: { taken: target }, target }
    }
    default:
      return { ...result, output: { decided: true } }
  }
}
