import type { Client } from '@muster/client'
import type { ReactNode } from 'react'
import { api } from '#api.ts'
import type { Choice } from '#choices.ts'
import * as strings from '#strings.ts'
import type { Stale } from './actions.tsx'
import { type Draft, useDraft, useSent } from './draft.tsx'
import { FormOrJson } from './form-or-json.tsx'
import { type Read, useGuardedSave } from './guarded-save.tsx'
import { type ObjectSchema, Restored, SchemaForm, type Values } from './schema-form.tsx'

type Tagged<Row> = { withResponse(): PromiseLike<{ data: Row; etag: string | null }> }

/** Reads a record, and what a later write of it names. */
export async function readTagged<Row, Ids>(
  get: (client: Client, ids: Ids, options: { signal?: AbortSignal }) => Tagged<Row>,
  ids: Ids,
  signal?: AbortSignal,
): Promise<Read<Row>> {
  const { data, etag } = await get(api, ids, { signal }).withResponse()
  return { record: data, etag }
}

/** A field of a record that is edited by separate controls, such as a list of objects. */
type OwnField<Value> = {
  name: string
  /** The value of a new record. */
  start: Value
  /** Returns the value that is sent. */
  packed?: (value: Value) => unknown
  input: (value: Value, onChange: (value: Value) => void) => ReactNode
}

type FormProps = {
  schema: ObjectSchema
  /** The fields of the form, in order. */
  only: string[]
  options?: Record<string, Choice[] | undefined>
  suggestions?: Record<string, string[]>
  /** Values with which a new record begins. */
  start?: Values
}

/**
 * Creates or changes a record, by a form of its fields or as JSON. If another person changed it meanwhile, both changes
 * are shown.
 */
export function RecordForm<Row extends { id: string }, Own = never>({
  first,
  read,
  write,
  stale,
  onDone,
  onCancel,
  ...fields
}: FormProps & {
  /** Undefined for a new record. */
  first?: Read<Row>
  read: (id: string) => Promise<Read<Row>>
  /** Creates a record, or changes the one with an ID. */
  write: (change: Values, options: { ifMatch?: string }, id: string | undefined) => Promise<{ id: string }>
  stale: Stale
  own?: OwnField<Own>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const id = first?.record.id
  const { base, formKey, save, dialog, ...state } = useGuardedSave<Row>({
    first,
    read: () => read(id as string),
    write: (change, options) => write(change, options, id),
    stale,
    onDone,
  })
  const common = { submitLabel: base ? strings.save : strings.create, onCancel, ...state }
  const { start = {}, only, own } = fields
  const values = base as Values | undefined
  const names = own ? [...only, own.name] : only
  const record = values ?? { ...start, ...(own ? { [own.name]: own.start } : {}) }
  return (
    <>
      <FormOrJson
        key={formKey}
        record={Object.fromEntries(names.map(name => [name, record[name] ?? null]))}
        onSubmit={change =>
          save(values ? change : Object.fromEntries(Object.entries({ ...record, ...change }).filter(isGiven)))
        }
        {...common}
        form={<Fields {...fields} initial={values} formKey={formKey} onSubmit={save} {...common} />}
      />
      {dialog}
    </>
  )
}

const isGiven = ([, value]: [string, unknown]) => value !== null

type State = { submitLabel: string; isPending?: boolean; error?: unknown; onCancel: () => void }

function Fields<Own>({
  own,
  formKey,
  ...form
}: FormProps & {
  own?: OwnField<Own>
  formKey: string
  initial?: Values
  onSubmit: (values: Values) => void
} & State) {
  return own ? <FieldsWithOwn own={own} formKey={formKey} {...form} /> : <SchemaForm {...form} />
}

function FieldsWithOwn<Own>({
  own: { name, start, packed = value => value, input },
  formKey,
  onSubmit,
  onCancel,
  ...form
}: FormProps & {
  own: OwnField<Own>
  formKey: string
  initial?: Values
  onSubmit: (values: Values) => void
} & State) {
  const { initial, isPending, error } = form
  const before = (initial?.[name] as Own | undefined) ?? start
  // Another version of the record is not mixed with input for the version before.
  const draft: Draft<Own> = useDraft<Own>(`${name} ${formKey}`, before)
  const submitted = useSent(draft, { isPending, error })
  const isChanged = JSON.stringify(draft.value) !== JSON.stringify(before)
  return (
    <SchemaForm
      {...form}
      onSubmit={values => {
        submitted()
        onSubmit(isChanged || !initial ? { ...values, [name]: packed(draft.value) } : values)
      }}
      onCancel={() => {
        draft.forget()
        onCancel()
      }}
    >
      {draft.isRestored && isChanged && <Restored onDiscard={() => draft.setValue(before)} />}
      {input(draft.value, draft.setValue)}
    </SchemaForm>
  )
}
