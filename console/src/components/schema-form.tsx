import {
  Autocomplete,
  Button,
  type ButtonProps,
  Checkbox,
  Group,
  JsonInput,
  MultiSelect,
  NumberInput,
  PasswordInput,
  Pill,
  Select,
  Stack,
  TagsInput,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core'
import { parseExactJson } from '@muster/client'
import { type ReactNode, useState } from 'react'
import { failureOf } from '#api.ts'
import type { Choice } from '#choices.ts'
import { isObject } from '#json.ts'
import * as strings from '#strings.ts'
import { useDraft, useSent } from './draft.tsx'
import { FailureAlert } from './states.tsx'
import { TextButton, visible } from './text.tsx'

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
}
export type ObjectSchema = { type?: 'object'; properties?: Record<string, FieldSchema>; required?: string[] }
export type Values = Record<string, unknown>

/** Length from which a text is written in several lines. */
const LONG = 1000

type Input = 'text' | 'secret' | 'time' | 'long' | 'number' | 'choice' | 'choices' | 'texts' | 'flag' | 'json'

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

/** Returns what a field holds while it is edited. */
export const entryOf = (input: Input, value: unknown): unknown => {
  if (input === 'json') return jsonText(value)
  if (input === 'choices' || input === 'texts') return value ?? []
  if (input === 'flag') return value ?? null
  if (input === 'time') return typeof value === 'string' ? localTime(value) : ''
  return value ?? ''
}

/** Returns the value of an entry: undefined for an empty one. Throws SyntaxError for invalid JSON. */
export function enteredOf(input: Input, entry: unknown): unknown {
  if (entry === '' || entry === null || (Array.isArray(entry) && entry.length === 0)) return undefined
  if (input === 'time') return new Date(entry as string).toISOString()
  return input === 'json' ? parseExactJson(entry as string) : entry
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
  isShown = () => true,
  options = {},
  at,
  suggestions = {},
  submitLabel = strings.save,
  isReadOnly,
  isSentLater,
  isPending,
  error,
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
  /** Whether a field belongs to the entered values; another field is submitted as empty. */
  isShown?: (name: string, entries: Values) => boolean
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
  onSubmit: (values: Values) => void
  onCancel?: () => void
  /** Content below the fields; a function receives the entered values. */
  children?: ReactNode | ((entries: Values) => ReactNode)
}) {
  const { properties = {}, required = [] } = schema
  // A record that is read again meanwhile is not what the user changes.
  const [initial] = useState(record)
  const fields = (only ?? Object.keys(properties))
    .filter(name => properties[name] && !omit.includes(name))
    .map(name => {
      const field = settled(properties[name])
      return { name, field, input: inputOf(name, field), isRequired: required.includes(name) && !initial }
    })
  const [untouched] = useState<Values>(() =>
    Object.fromEntries(
      fields.map(({ name, input, field }) => [
        name,
        entryOf(input, initial ? initial[name] : (start[name] ?? field.const)),
      ]),
    ),
  )
  const draft = useEnteredFields(fields, [String(initial?.id ?? ''), submitLabel, JSON.stringify(start)], {
    isPending,
    error,
  })
  const entries: Values = { ...untouched, ...draft.value }
  const shown = fields.filter(({ name }) => isShown(name, entries))
  const [wrong, setWrong] = useState<Record<string, string>>({})
  const submit = () => {
    const values: Values = {}
    const problems: Record<string, string> = {}
    for (const { name, input, field, isRequired } of fields) {
      try {
        if (initial && input === 'time' && entries[name] === entryOf(input, initial[name])) continue
        const value = isShown(name, entries) ? enteredOf(input, entries[name]) : undefined
        if (field.type === 'object' && value !== undefined && !isObject(value)) problems[name] = strings.form.notObject
        if (initial) {
          if (JSON.stringify(value ?? null) !== JSON.stringify(initial[name] ?? null)) values[name] = value ?? null
        } else if (value !== undefined) values[name] = value
        else if (isRequired) problems[name] = strings.form.required
      } catch {
        problems[name] = strings.form.notJson
      }
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
        {shown.map(({ name, field, input, isRequired }, index) => (
          <SchemaField
            key={name}
            input={input}
            field={field}
            options={options[name]}
            suggestions={suggestions[name]}
            entry={entries[name]}
            onChange={entry => draft.setValue(all => ({ ...all, [name]: entry }))}
            common={{
              label: field.title ? visible(field.title) : fieldLabel(name),
              description: field.description && visible(field.description.replaceAll('`', '')),
              placeholder: ['string', 'number'].includes(typeof field.default) ? String(field.default) : undefined,
              error: wrong[name] ?? (refused[name] && visible(refused[name])),
              required: isRequired,
              disabled: isReadOnly,
              ...(index === 0 ? { 'data-autofocus': true } : {}),
            }}
          />
        ))}
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
function useEnteredFields(
  fields: { name: string; field: FieldSchema }[],
  names: string[],
  state: { isPending?: boolean; error?: unknown },
) {
  const kept = new Set(fields.filter(({ field }) => !isSecret(field)).map(({ name }) => name))
  const draft = useDraft<Values>([...fields.map(({ name }) => name), ...names].join(' '), {}, value =>
    Object.fromEntries(Object.entries(value).filter(([name]) => kept.has(name))),
  )
  return { ...draft, submit: useSent(draft, state) }
}

/** The end of a form: why it was refused, and its buttons. */
export function SubmitRow({
  label = strings.save,
  cancelLabel = strings.cancel,
  cancelProps,
  isPending,
  error,
  onCancel,
  ...button
}: {
  label?: string
  cancelLabel?: string
  cancelProps?: { 'data-autofocus': true }
  isPending?: boolean
  error?: unknown
  onCancel?: () => void
} & Pick<ButtonProps, 'color' | 'disabled'>) {
  return (
    <>
      {Boolean(error) && <FailureAlert error={error} />}
      <Group>
        <Button type="submit" loading={isPending} {...button}>
          {label}
        </Button>
        {onCancel && (
          <Button variant="default" onClick={onCancel} {...cancelProps}>
            {cancelLabel}
          </Button>
        )}
      </Group>
    </>
  )
}

/** The control of one field. */
export function SchemaField({
  input,
  field,
  options,
  suggestions,
  entry,
  onChange,
  common,
}: {
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
  switch (input) {
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
