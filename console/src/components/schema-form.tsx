import {
  Autocomplete,
  Button,
  Card,
  Checkbox,
  Group,
  InputWrapper,
  JsonInput,
  MultiSelect,
  NumberInput,
  PasswordInput,
  Pill,
  Select,
  Skeleton,
  Stack,
  TagsInput,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core'
import { parseExactJson } from '@muster/client'
import { type ReactNode, Suspense, useEffect, useRef, useState } from 'react'
import { failureOf } from '#api.ts'
import type { Choice } from '#choices.ts'
import { isObject } from '#json.ts'
import * as strings from '#strings.ts'
import { useDraft, useSent } from './draft.tsx'
import { onDemand } from './on-demand.tsx'
import { SubmitRow } from './submit-row.tsx'
import { TextButton, visible } from './text.tsx'

export { SubmitRow }

/** A JSON Schema, as far as a form follows it; the service checks the rest. */
export type FieldSchema = {
  type?: string | string[]
  title?: string
  description?: string
  default?: unknown
  enum?: unknown[]
  const?: unknown
  anyOf?: FieldSchema[]
  oneOf?: FieldSchema[]
  items?: FieldSchema
  minimum?: number
  maximum?: number
  maxLength?: number
  format?: string
  'x-secret'?: boolean
  /** Kind of the records whose IDs the field contains. */
  'x-refers'?: string
  /** Fields of an object that a form shows instead of JSON. */
  fields?: ObjectSchema
  /** Fields of the entries of a list that a form shows instead of JSON. */
  entries?: ListSchema
}
export type ObjectSchema = {
  type?: 'object'
  properties?: Record<string, FieldSchema>
  required?: string[]
  /** Returns the fields that are shown and sent; all by default. */
  only?: (entry: Values) => readonly string[]
}
type ListSchema = ObjectSchema & {
  /** Name of one entry. */
  title: string
  /** Forms of an entry. An entry has the form whose first field it contains. */
  variants: { label: string; fields: readonly string[] }[]
}
export type Values = Record<string, unknown>

/** Length from which a text is written in several lines. */
const LONG = 1000

type Input =
  | 'text'
  | 'secret'
  | 'time'
  | 'long'
  | 'number'
  | 'choice'
  | 'choices'
  | 'texts'
  | 'flag'
  | 'json'
  | 'object'
  | 'list'

/** Returns the schema of a field without its null, which a form shows as an empty field. */
export function settled(schema: FieldSchema): FieldSchema {
  const { anyOf, oneOf, ...own } = schema
  const choices = (anyOf ?? oneOf)?.filter(({ type, const: constant }) => type !== 'null' && constant !== null)
  if (choices?.length === 1) return settled({ ...choices[0], ...own })
  // One value or a list of them is a list.
  const list = choices?.length === 2 && choices.find(({ type }) => type === 'array')
  if (list && choices.some(({ type }) => type === list.items?.type)) return settled({ ...list, ...own })
  const types = Array.isArray(own.type) ? own.type.filter(type => type !== 'null') : own.type
  return {
    ...own,
    ...(choices ? { anyOf: choices } : {}),
    type: Array.isArray(types) && types.length === 1 ? types[0] : types,
  }
}

const textsOf = (schema: FieldSchema): string[] | undefined =>
  schema.enum?.every(value => value === null || typeof value === 'string')
    ? schema.enum.filter(value => typeof value === 'string')
    : undefined

/** Returns how a form shows a field. */
export function inputOf(name: string, schema: FieldSchema): Input {
  if (schema.fields) return 'object'
  if (schema.entries) return 'list'
  if (textsOf(schema)) return 'choice'
  switch (schema.type) {
    case 'string':
      if (schema['x-secret']) return 'secret'
      if (schema.format === 'date-time') return 'time'
      return (schema.maxLength ?? 0) > LONG && !name.endsWith('url') ? 'long' : 'text'
    case 'integer':
    case 'number':
      return 'number'
    case 'boolean':
      return 'flag'
    case 'array': {
      const items = settled(schema.items ?? {})
      if (textsOf(items)) return 'choices'
      return items.type === 'string' ? 'texts' : 'json'
    }
    default:
      return 'json'
  }
}

/** The text of a value in a field that is written as JSON. */
const jsonText = (value: unknown): string =>
  value === undefined || value === null ? '' : JSON.stringify(value, null, 2)

/** Returns a time as the browser's field of times holds it: in the local time zone, to the minute. */
const localTime = (at: string): string => {
  const time = new Date(at)
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16)
}

/** Returns the object of a JSON text; null if it is none. */
export function parseObject(text: string): Values | null {
  try {
    const value: unknown = parseExactJson(text)
    return isObject(value) ? value : null
  } catch {
    return null
  }
}

type Field = { name: string; field: FieldSchema; input: Input; isRequired: boolean }

/** The fields of a form, in order. */
const fieldsOf = ({ properties = {}, required = [] }: ObjectSchema, only = Object.keys(properties)): Field[] =>
  only
    .filter(name => properties[name])
    .map(name => {
      const field = settled(properties[name])
      return { name, field, input: inputOf(name, field), isRequired: required.includes(name) }
    })

/** Returns what a field holds while it is edited. */
export function entryOf(input: Input, field: FieldSchema, value: unknown): unknown {
  switch (input) {
    case 'json':
      return jsonText(value)
    case 'choices':
    case 'texts':
      return value ?? []
    case 'flag':
      return value ?? null
    case 'time':
      return typeof value === 'string' ? localTime(value) : ''
    case 'object':
      return objectEntry(field.fields ?? {}, isObject(value) ? value : {})
    case 'list':
      return (Array.isArray(value) ? value : []).map(each => objectEntry(field.entries ?? {}, each, true))
    default:
      return value ?? ''
  }
}

/** The entries of an object. With `isSparse` only of fields that it has: the form of the entry of a list depends on them. */
const objectEntry = (schema: ObjectSchema, value: Values, isSparse = false): Values => ({
  ...value,
  ...Object.fromEntries(
    fieldsOf(schema)
      .filter(({ name }) => !isSparse || name in value)
      .map(({ name, input, field }) => [name, entryOf(input, field, value[name])]),
  ),
})

/** Returns the value of an entry: undefined for an empty one. Adds problems by path. */
export function enteredOf(
  { input, field, isRequired }: Omit<Field, 'name'>,
  entry: unknown,
  path: string,
  problems: Record<string, string>,
): unknown {
  if (input === 'object') return enteredObject(field.fields ?? {}, entry as Values, path, problems)
  if (input === 'list') {
    const values = (entry as Values[]).map((each, index) =>
      enteredObject(field.entries ?? {}, each, `${path}[${index}]`, problems),
    )
    return values.some(value => value !== undefined) ? values.map(value => value ?? {}) : undefined
  }
  if (entry === '' || entry === null || entry === undefined || (Array.isArray(entry) && entry.length === 0)) {
    if (isRequired) problems[path] = strings.form.required
    return undefined
  }
  if (input === 'time') return new Date(entry as string).toISOString()
  if (input !== 'json') return entry
  try {
    const value = parseExactJson(entry as string)
    if (field.type === 'object' && !isObject(value)) problems[path] = strings.form.notObject
    return value
  } catch {
    problems[path] = strings.form.notJson
    return undefined
  }
}

/** The value of an object by its fields, with values that have no field; undefined if nothing is entered. */
function enteredObject(
  schema: ObjectSchema,
  entry: Values,
  path: string,
  problems: Record<string, string>,
): Values | undefined {
  const own: Record<string, string> = {}
  const value = Object.fromEntries(Object.entries(entry).filter(([name]) => !schema.properties?.[name]))
  for (const { name, ...field } of fieldsOf(schema, [
    ...(schema.only?.(entry) ?? Object.keys(schema.properties ?? {})),
  ])) {
    if (!(name in entry) && !field.isRequired) continue
    const entered = enteredOf(field, entry[name], `${path}.${name}`, own)
    if (entered !== undefined) value[name] = entered
  }
  if (Object.keys(value).length === 0 && !Object.values(own).some(problem => problem !== strings.form.required))
    return undefined
  Object.assign(problems, own)
  return value
}

/** Returns the name of a field for people. */
export const fieldLabel = (name: string): string => {
  const words = name
    .replaceAll('_', ' ')
    .replace(/\bid(s?)\b/g, 'ID$1')
    .replace(/\bip(s?)\b/g, 'IP$1')
    .replace(/\burl\b/g, 'URL')
  return visible(words.charAt(0).toUpperCase() + words.slice(1))
}

/**
 * A form of the fields of a JSON Schema, such as the body of an operation or the parameters of a tool. Submits the entered
 * fields: of `initial` values only those that differ, with null for emptied ones; without, those that are not empty.
 */
export function SchemaForm({
  schema,
  initial: record,
  start = {},
  only,
  omit = [],
  options = {},
  at,
  suggestions = {},
  submitLabel = strings.save,
  isReadOnly,
  isSentLater,
  isPending,
  error,
  refers,
  watch,
  isShown = () => true,
  onSubmit,
  onCancel,
  children,
}: {
  schema: ObjectSchema
  /** The record that is changed. */
  initial?: Values
  /** Values with which a new record begins; they are submitted like entered ones. */
  start?: Values
  /** The fields that are shown, in order; all by default. */
  only?: string[]
  omit?: string[]
  /** Values of fields that name other records, as a list to choose from. */
  options?: Record<string, Choice[] | undefined>
  /** Path of the values in the body that is sent, which problems of the service begin with. */
  at?: string
  /** Texts that fields of one or several texts offer; others may be entered. */
  suggestions?: Record<string, string[]>
  submitLabel?: string
  /** Whether the fields are only shown. */
  isReadOnly?: boolean
  /** Whether unsent input is kept after the form was submitted, because it is sent later. */
  isSentLater?: boolean
  isPending?: boolean
  error?: unknown
  /** Kinds of the records of fields whose schemas do not have them. */
  refers?: Record<string, string>
  /** Receives what a field holds, for suggestions that depend on it. */
  watch?: { field: string; onChange: (entry: unknown) => void }
  /** Whether a field belongs to the entered values; another field is submitted as empty. */
  isShown?: (name: string, entries: Values) => boolean
  onSubmit: (values: Values) => void
  onCancel?: () => void
  /** Content below the fields; a function receives the entered values. */
  children?: ReactNode | ((entries: Values) => ReactNode)
}) {
  // A record that is read again meanwhile is not what the user changes.
  const [initial] = useState(record)
  const fields = fieldsOf(schema, only)
    .filter(({ name }) => !omit.includes(name))
    .map(field => ({ ...field, isRequired: field.isRequired && !initial }))
  const [untouched] = useState<Values>(() =>
    Object.fromEntries(
      fields.map(({ name, input, field }) => [
        name,
        entryOf(input, field, initial ? initial[name] : (start[name] ?? field.const)),
      ]),
    ),
  )
  const draft = useEnteredFields(fields, [String(initial?.id ?? ''), submitLabel, JSON.stringify(start)], {
    isPending,
    error,
  })
  const entries: Values = { ...untouched, ...draft.value }
  const watched = watch && entries[watch.field]
  useEffect(() => watch?.onChange(watched), [watched])
  const [wrong, setWrong] = useState<Record<string, string>>({})
  const submit = () => {
    const values: Values = {}
    const problems: Record<string, string> = {}
    for (const { name, ...field } of fields) {
      const isUntouched = JSON.stringify(entries[name]) === JSON.stringify(untouched[name])
      const isEntered = isShown(name, entries)
      if (initial && isUntouched && isEntered) continue
      const value = isEntered ? enteredOf(field, entries[name], name, problems) : undefined
      if (!initial) {
        if (value !== undefined) values[name] = value
      } else if (JSON.stringify(value ?? null) !== JSON.stringify(initial[name] ?? null)) values[name] = value ?? null
    }
    setWrong(problems)
    if (Object.keys(problems).length > 0) return
    if (!isSentLater) draft.submit()
    onSubmit(values)
  }
  const cancel = () => {
    draft.forget()
    onCancel?.()
  }
  const refused = Object.fromEntries(
    (error ? (failureOf(error).problems ?? []) : []).flatMap(({ path, message }) => {
      const own = at && path.startsWith(`${at}.`) ? path.slice(at.length + 1) : path
      return [
        [own, message],
        [own.split(/[.[]/)[0], message],
      ]
    }),
  )
  const problems = { ...refused, ...wrong }
  return (
    <form
      noValidate
      onSubmit={event => {
        event.preventDefault()
        submit()
      }}
    >
      <Stack gap="md">
        {draft.isRestored && Object.keys(draft.value).length > 0 && <Restored onDiscard={() => draft.setValue({})} />}
        <Fields
          fields={fields.filter(({ name }) => isShown(name, entries))}
          entries={entries}
          onChange={(name, entry) => draft.setValue(all => ({ ...all, [name]: entry }))}
          {...{ options, suggestions, refers, problems, isReadOnly }}
          hasFocus
        />
        {typeof children === 'function' ? children(entries) : children}
        {isReadOnly ? null : (
          <SubmitRow label={submitLabel} isPending={isPending} error={error} onCancel={onCancel && cancel} />
        )}
      </Stack>
    </form>
  )
}

/** Says that a form contains input that was not sent. */
export function Restored({ onDiscard }: { onDiscard: () => void }) {
  return (
    <Group gap="sm" role="status">
      <Text size="sm" c="dimmed">
        {strings.form.restored}
      </Text>
      <TextButton onClick={onDiscard}>{strings.form.discard}</TextButton>
    </Group>
  )
}

/** Whether a value of the schema, or a part of it, is a secret. */
const isSecret = (field: FieldSchema): boolean => JSON.stringify(field).includes('"x-secret":true')

/** The fields that differ from what the form began with, kept until they were sent; secrets are not. */
function useEnteredFields(fields: Field[], names: string[], state: { isPending?: boolean; error?: unknown }) {
  const kept = new Set(fields.filter(({ field }) => !isSecret(field)).map(({ name }) => name))
  const draft = useDraft<Values>([...fields.map(({ name }) => name), ...names].join(' '), {}, value =>
    Object.fromEntries(Object.entries(value).filter(([name]) => kept.has(name))),
  )
  return { ...draft, submit: useSent(draft, state) }
}

/** The fields of a form, or of an object in it. */
function Fields({
  fields,
  entries,
  onChange,
  path = '',
  options = {},
  suggestions = {},
  refers = {},
  problems,
  isReadOnly,
  hasFocus,
}: {
  fields: Field[]
  entries: Values
  onChange: (name: string, entry: unknown) => void
  /** Path of the object in the form, with a point. */
  path?: string
  options?: Record<string, Choice[] | undefined>
  suggestions?: Record<string, string[]>
  refers?: Record<string, string>
  /** Problems by path. */
  problems: Record<string, string>
  isReadOnly?: boolean
  /** Whether the focus of a dialog begins here. */
  hasFocus?: boolean
}) {
  return fields.map(({ name, field, input, isRequired }, index) => {
    const problem = problems[path + name]
    return (
      <SchemaField
        key={name}
        path={path + name}
        input={input}
        field={refers[name] ? { ...field, 'x-refers': refers[name] } : field}
        options={options[path + name]}
        suggestions={suggestions[path + name]}
        allSuggestions={suggestions}
        problems={problems}
        entry={entries[name] ?? entryOf(input, field, undefined)}
        onChange={entry => onChange(name, entry)}
        common={{
          label: field.title ? visible(field.title) : fieldLabel(name),
          description: field.description && visible(field.description.replaceAll('`', '')),
          placeholder: ['string', 'number'].includes(typeof field.default) ? String(field.default) : undefined,
          error: problem && visible(problem),
          required: isRequired,
          disabled: isReadOnly,
          ...(hasFocus && index === 0 ? { 'data-autofocus': true } : {}),
        }}
      />
    )
  })
}

type Nested = {
  path: string
  entry: unknown
  onChange: (entry: unknown) => void
  allSuggestions: Record<string, string[]>
  problems: Record<string, string>
  common: { label: string; description?: string; error?: string; disabled?: boolean }
}

/** The fields of an object. */
function ObjectField({
  schema,
  path,
  entry,
  onChange,
  allSuggestions,
  problems,
  common,
}: Nested & { schema: ObjectSchema }) {
  const entries = entry as Values
  return (
    <Card withBorder padding="md" role="group" aria-label={common.label}>
      <Stack gap="md">
        <Text size="sm" fw={500}>
          {common.label}
        </Text>
        {common.description && (
          <Text size="sm" c="dimmed">
            {common.description}
          </Text>
        )}
        <Fields
          fields={fieldsOf(schema, schema.only && [...schema.only(entries)])}
          entries={entries}
          path={`${path}.`}
          onChange={(name, value) => onChange({ ...entries, [name]: value })}
          suggestions={allSuggestions}
          problems={problems}
          isReadOnly={common.disabled}
        />
        <Problem text={common.error} />
      </Stack>
    </Card>
  )
}

/** The entries of a list, each by its fields. */
function ListField({
  schema,
  path,
  entry,
  onChange,
  allSuggestions,
  problems,
  common,
}: Nested & { schema: ListSchema }) {
  const rows = entry as Values[]
  const list = useRef<HTMLDivElement>(null)
  // The focus goes to a new entry, and stays in the list when its entry is removed.
  const [next, setNext] = useState<string>()
  useEffect(() => {
    if (next !== undefined) list.current?.querySelector<HTMLElement>(next)?.focus()
    setNext(undefined)
  }, [next])
  const put = (index: number, ...row: Values[]) => onChange(rows.toSpliced(index, 1, ...row))
  return (
    <Card withBorder padding="md" role="group" aria-label={common.label} ref={list}>
      <Stack gap="md">
        <Text size="sm" fw={500}>
          {common.label}
        </Text>
        {common.description && (
          <Text size="sm" c="dimmed">
            {common.description}
          </Text>
        )}
        {rows.map((row, index) => {
          const variant = schema.variants.find(({ fields }) => fields[0] in row) ?? schema.variants[0]
          const name = `${schema.title} ${index + 1}`
          return (
            <Card key={index} withBorder padding="sm" role="group" aria-label={name} data-entry={index}>
              <Stack gap="sm">
                <Fields
                  fields={fieldsOf(schema, [...variant.fields])}
                  entries={row}
                  path={`${path}[${index}].`}
                  onChange={(field, value) => put(index, { ...row, [field]: value })}
                  suggestions={allSuggestions}
                  problems={problems}
                  isReadOnly={common.disabled}
                />
                {!common.disabled && (
                  <Group>
                    <Button
                      variant="default"
                      size="xs"
                      onClick={() => {
                        put(index)
                        setNext('[data-add]')
                      }}
                      aria-label={strings.form.removeEntry(name)}
                    >
                      {strings.form.remove}
                    </Button>
                  </Group>
                )}
              </Stack>
            </Card>
          )
        })}
        <Problem text={common.error} />
        {!common.disabled && (
          <Group gap="sm">
            {schema.variants.map(({ label, fields }) => (
              <Button
                key={label}
                variant="default"
                size="xs"
                data-add
                onClick={() => {
                  const [name] = fields
                  onChange([...rows, objectEntry({ properties: { [name]: schema.properties?.[name] ?? {} } }, {})])
                  setNext(`[data-entry="${rows.length}"] input`)
                }}
              >
                {label}
              </Button>
            ))}
          </Group>
        )}
      </Stack>
    </Card>
  )
}

function Problem({ text }: { text?: string }) {
  if (!text) return null
  return (
    <Text size="sm" c="var(--mantine-color-error)">
      {text}
    </Text>
  )
}

/** Loads with the first form that refers to other records: most views have none. */
const ReferenceInput = onDemand(async () => (await import('./reference.tsx')).ReferenceInput)

const Waiting = ({ label }: { label: string }) => (
  <InputWrapper label={label}>
    <Skeleton h={36} />
  </InputWrapper>
)

/** The control of one field. */
export function SchemaField({
  input,
  field,
  options,
  suggestions,
  entry,
  onChange,
  common,
  ...nested
}: Pick<Nested, 'path' | 'allSuggestions' | 'problems'> & {
  input: Input
  field: FieldSchema
  options?: Choice[]
  suggestions?: string[]
  entry: unknown
  onChange: (entry: unknown) => void
  common: {
    label: string
    description?: string
    placeholder?: string
    error?: string
    required: boolean
    disabled?: boolean
  }
}) {
  const clear = { 'aria-label': strings.form.clear(common.label) }
  const items = settled(field.items ?? {})
  const choices =
    options ?? (textsOf(input === 'choices' ? items : field) ?? []).map(value => ({ value, label: value }))
  if (options && input !== 'texts')
    return (
      <Select
        {...common}
        data={choices}
        value={(entry as string) || null}
        onChange={onChange}
        clearable={!common.required}
        clearButtonProps={clear}
        searchable
        openOnFocus={false}
        nothingFoundMessage={strings.nothingFound}
      />
    )
  const kind = field['x-refers']
  if (kind && !options && (input === 'text' || input === 'texts'))
    return (
      <Suspense fallback={<Waiting label={common.label} />}>
        <ReferenceInput
          kind={kind}
          isMany={input === 'texts'}
          entry={entry}
          onChange={onChange}
          common={common}
          fallback={
            input === 'texts' ? (
              <TagsInput {...common} value={entry as string[]} onChange={onChange} />
            ) : (
              <TextInput {...common} value={entry as string} onChange={event => onChange(event.currentTarget.value)} />
            )
          }
        />
      </Suspense>
    )
  switch (input) {
    case 'object':
      return <ObjectField schema={field.fields ?? {}} {...{ entry, onChange, common, ...nested }} />
    case 'list':
      return <ListField schema={field.entries as ListSchema} {...{ entry, onChange, common, ...nested }} />
    case 'choice':
      return (
        <Select
          {...common}
          data={choices}
          value={(entry as string) || null}
          onChange={onChange}
          clearable={!common.required}
          clearButtonProps={clear}
        />
      )
    case 'choices':
      return <MultiSelect {...common} data={choices} value={entry as string[]} onChange={onChange} />
    case 'texts':
      return options ? (
        <MultiSelect {...common} data={choices} value={entry as string[]} onChange={onChange} searchable />
      ) : (
        <TagsInput
          {...common}
          data={suggestions}
          maxDropdownHeight={240}
          value={entry as string[]}
          onChange={onChange}
          renderPill={({ value, onRemove, disabled, reorderProps }) => (
            <Pill {...reorderProps} withRemoveButton onRemove={onRemove} disabled={disabled}>
              {visible(String(value))}
            </Pill>
          )}
        />
      )
    case 'number':
      return (
        <NumberInput
          {...common}
          value={entry as number | ''}
          onChange={onChange}
          min={field.minimum}
          max={field.maximum}
          allowDecimal={field.type !== 'integer'}
          hideControls
        />
      )
    case 'flag':
      return (
        <Checkbox
          {...common}
          required={false}
          checked={(entry as boolean | null) ?? field.default === true}
          onChange={event => onChange(event.currentTarget.checked)}
        />
      )
    case 'secret':
      return (
        <PasswordInput
          {...common}
          autoComplete="off"
          value={entry as string}
          onChange={event => onChange(event.currentTarget.value)}
        />
      )
    case 'json':
      return (
        <JsonInput
          {...common}
          validationError={strings.form.notJson}
          value={entry as string}
          onChange={onChange}
          autosize
          minRows={3}
          maxRows={24}
          classNames={{ input: 'mono' }}
        />
      )
    case 'long':
      return (
        <Textarea
          {...common}
          value={entry as string}
          onChange={event => onChange(event.currentTarget.value)}
          autosize
          minRows={3}
          maxRows={24}
        />
      )
    default:
      return suggestions && input === 'text' ? (
        <Autocomplete
          {...common}
          data={suggestions}
          maxDropdownHeight={240}
          limit={100}
          value={entry as string}
          onChange={onChange}
        />
      ) : (
        <TextInput
          {...common}
          type={input === 'time' ? 'datetime-local' : 'text'}
          value={entry as string}
          onChange={event => onChange(event.currentTarget.value)}
        />
      )
  }
}
