import guardrailFields from 'fields:createGuardrail'
import documentFields from 'fields:createGuardrail.document'
import { type Guardrail, type GuardrailInput, parseExactJson } from '@muster/client'
import { createGuardrail, getGuardrail, updateGuardrail } from '@muster/client/operations'
import { api } from '#api.ts'
import { FormOrJson } from '#components/form-or-json.tsx'
import { type Read, useGuardedSave } from '#components/guarded-save.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const DOCUMENT = Object.keys(documentFields.properties ?? {})
const schema = {
  properties: {
    ...guardrailFields.properties,
    ...documentFields.properties,
    // A letter, or an expression: a text, so that the letter needs no quotes.
    class: { ...documentFields.properties?.class, type: 'string', maxLength: 65_536 },
  },
  required: ['name', 'class'],
}

const classText = (own: unknown): unknown => (typeof own === 'object' ? JSON.stringify(own, null, 2) : own)

/** An expression of a text, or the text where it is none: the service reports its problems. */
function classOf(text: unknown): unknown {
  try {
    return parseExactJson(String(text))
  } catch {
    return String(text).trim()
  }
}

/** Moves the rules to the document, which is sent whole. */
function packed(values: Values, guardrail?: Guardrail): Values {
  const rules = Object.entries(values).filter(([name]) => DOCUMENT.includes(name))
  const others = Object.fromEntries(Object.entries(values).filter(([name]) => !DOCUMENT.includes(name)))
  if (rules.length === 0) return others
  const changed = rules.map(([name, value]) => [name, name === 'class' && value !== null ? classOf(value) : value])
  const document = { ...guardrail?.document, ...Object.fromEntries(changed) }
  return { ...others, document: Object.fromEntries(Object.entries(document).filter(([, value]) => value !== null)) }
}

/** Reads a guardrail, and what a later write of it names. */
export async function readGuardrail(id: string, signal?: AbortSignal): Promise<Read<Guardrail>> {
  const { data, etag } = await getGuardrail(api, { guardrail_id: id }, { signal }).withResponse()
  return { record: data, etag }
}

/** Creates or changes a guardrail, by its rules or as JSON. */
export function GuardrailForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<Guardrail>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const id = first?.record.id
  const {
    base: guardrail,
    formKey,
    save,
    dialog,
    ...state
  } = useGuardedSave<Guardrail>({
    first,
    read: () => readGuardrail(id as string),
    write: async (change, options) =>
      id
        ? updateGuardrail(api, { ...change, guardrail_id: id }, options)
        : createGuardrail(api, { ...change, project_id: projectId } as GuardrailInput),
    stale: [['guardrails', projectId], ...(id ? [['guardrail', id]] : [])],
    onDone,
  })
  const common = {
    submitLabel: guardrail ? strings.save : strings.create,
    onCancel,
    ...state,
  }
  const { name = '', description = null, document = { class: 'C' }, context_tool_id = null } = guardrail ?? {}
  const rules = document as Values
  return (
    <>
      <FormOrJson
        key={formKey}
        record={{ name, description, document, context_tool_id, context_mode: guardrail?.context_mode ?? null }}
        onSubmit={save}
        {...common}
        form={
          <SchemaForm
            schema={schema}
            only={['name', 'description', ...DOCUMENT, 'context_tool_id', 'context_mode']}
            initial={guardrail && { ...guardrail, ...rules, class: classText(rules.class) }}
            onSubmit={values => save(packed(values, guardrail))}
            {...common}
          />
        }
      />
      {dialog}
    </>
  )
}
