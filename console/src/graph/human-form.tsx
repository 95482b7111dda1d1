import { Text } from '@mantine/core'
import type { OrchestrationNode, RequiredAction } from '@muster/client'
import { submitHumanInput } from '@muster/client/operations'
import { api } from '#api.ts'
import { type Stale, useAction } from '#components/actions.tsx'
import { DraftScope } from '#components/draft.tsx'
import { type ObjectSchema, SchemaForm, type Values } from '#components/schema-form.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { meant } from '#json.ts'
import * as strings from '#strings.ts'

/** Returns the names that expressions read of the answer of a node. */
function fieldsRead(nodes: OrchestrationNode[], nodeId: string): string[] {
  const found = new Set<string>()
  const note = (path: unknown, prefix: string) => {
    if (typeof path === 'string' && path.startsWith(prefix)) found.add(path.slice(prefix.length).split('.')[0])
  }
  const walk = (value: unknown, prefix: string) => {
    if (typeof value !== 'object' || value === null) return
    for (const [key, inner] of Object.entries(value)) {
      if (key === 'var') note(Array.isArray(inner) ? inner[0] : inner, prefix)
      walk(inner, prefix)
    }
  }
  for (const { id, state_mapping, ...node } of nodes) {
    walk(node, `nodes.${nodeId}.`)
    walk(state_mapping, id === nodeId ? 'output.' : `nodes.${nodeId}.`)
  }
  return [...found].filter(name => name !== '')
}

const OTHER = 'other_fields'

/**
 * The form that answers a node which waits for a person or a call: a choice of its options, the fields that the graph
 * reads of the answer (of `nodes`, where they are known), and further fields as JSON.
 */
export function HumanForm({
  runId,
  action,
  nodes = [],
  submitLabel = strings.runs.answer,
  stale,
  onDone,
  onCancel,
}: {
  runId: string
  action: RequiredAction
  nodes?: OrchestrationNode[]
  submitLabel?: string
  stale: Stale
  onDone?: () => void
  onCancel?: () => void
}) {
  const nodeId = action.node_id as string
  const { options } = action
  const read = fieldsRead(nodes, nodeId).filter(name => !(options && name === 'choice'))
  const schema: ObjectSchema = {
    properties: {
      ...(options ? { choice: { type: 'string', title: strings.runs.choice, enum: options } } : {}),
      ...Object.fromEntries(
        read.map(name => [name, { type: 'string', title: name, description: strings.runs.fieldHelp }]),
      ),
      [OTHER]: { type: 'object', title: strings.runs.otherFields, description: strings.runs.otherFieldsHelp },
    },
    required: options ? ['choice'] : [],
  }
  const answer = useAction({
    run: async ({ [OTHER]: other, choice, ...values }: Values) => {
      const fields = Object.fromEntries(Object.entries(values).map(([name, text]) => [name, meant(text)]))
      const output = { ...(other as object | undefined), ...fields, ...(choice === undefined ? {} : { choice }) }
      return submitHumanInput(api, { orchestration_run_id: runId, node_id: nodeId, output, wait: false })
    },
    stale,
    message: strings.runs.answered,
    onDone,
  })
  return (
    <DraftScope value={`${runId}-${nodeId}`}>
      <SchemaForm
        schema={schema}
        submitLabel={submitLabel}
        isPending={answer.isPending}
        error={answer.error}
        onSubmit={values => answer.mutate(values)}
        onCancel={onCancel}
      />
    </DraftScope>
  )
}

/** The question to the person, with the data that the node shows for it. */
export function Question({ action: { prompt, context } }: { action: RequiredAction }) {
  return (
    <>
      {prompt && <Text className="wrap">{visible(prompt)}</Text>}
      {context && Object.keys(context).length > 0 && <Value value={context} label={strings.runs.input} />}
    </>
  )
}
