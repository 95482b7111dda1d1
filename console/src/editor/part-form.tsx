import { Accordion, Group, List, MultiSelect, Select, Stack, Text } from '@mantine/core'
import { useState } from 'react'
import type { Choice } from '#choices.ts'
import { enteredOf, entryOf, type inputOf, SchemaField, type Values } from '#components/schema-form.tsx'
import { visible } from '#components/text.tsx'
import * as strings from '#strings.ts'
import { ExpressionField, MappingField, RulesField, type Unfinished, useEntry } from './expression.tsx'
import { type Field, valueAt, withValue } from './fields.ts'
import type { Available, Records } from './kind.ts'

const texts = strings.editor

/** A node or an edge that is edited by a form. */
export type EditedPart = {
  part: Values
  /** Distinguishes unfinished texts of different parts. */
  path: string
  fields: Field[]
  records: Records
  unfinished: Unfinished
  onUnfinished: (path: string, text: unknown) => void
  /** Changes the value of a field. */
  onChange: (part: Values, field: string) => void
  /** Returns what the service says about a field: of a mapping also about one of its entries. */
  errorOf: (field: string) => string | undefined
  /** Values that expressions of a field can read. */
  available: (field: string) => Available[]
}

/** The fields of a node or an edge. Each change applies immediately. */
export function PartForm(props: EditedPart) {
  const { fields, part, errorOf } = props
  const first = fields.filter(({ isMore }) => !isMore)
  const more = fields.filter(({ isMore }) => isMore)
  const isOpen = more.some(({ name }) => valueAt(part, name) !== undefined || errorOf(name) !== undefined)
  const [open, setOpen] = useState<string | null>(isOpen ? 'more' : null)
  const values = new Map(
    fields
      .filter(({ input }) => input === 'expression' || input === 'mapping' || input === 'rules')
      .flatMap(({ name }) => props.available(name))
      .map(each => [each.name, each]),
  )
  return (
    <Stack gap="md">
      {first.map(field => (
        <PartField key={field.name} field={field} {...props} />
      ))}
      <Accordion value={open} onChange={setOpen} variant="contained" radius="md">
        {more.length > 0 && (
          <Accordion.Item value="more">
            <Accordion.Control>{texts.more}</Accordion.Control>
            <Accordion.Panel>
              <Stack gap="md">
                {open === 'more' && more.map(field => <PartField key={field.name} field={field} {...props} />)}
              </Stack>
            </Accordion.Panel>
          </Accordion.Item>
        )}
        {values.size > 0 && (
          <Accordion.Item value="values">
            <Accordion.Control>{texts.values}</Accordion.Control>
            <Accordion.Panel>{open === 'values' && <ReadableValues values={[...values.values()]} />}</Accordion.Panel>
          </Accordion.Item>
        )}
      </Accordion>
    </Stack>
  )
}

/** What expressions can read. */
function ReadableValues({ values }: { values: Available[] }) {
  return (
    <Stack gap="xs">
      <Text size="sm" c="dimmed">
        {texts.valuesHelp}
      </Text>
      <List size="sm" listStyleType="none" spacing={4}>
        {values.map(({ name, about }) => (
          <List.Item key={name}>
            <Group gap="xs">
              <span className="mono">{visible(name)}</span>
              <Text size="xs" c="dimmed" component="span">
                {visible(about)}
              </Text>
            </Group>
          </List.Item>
        ))}
      </List>
    </Stack>
  )
}

function PartField({ field, ...edited }: { field: Field } & EditedPart) {
  const { name, label, description, input } = field
  const { part, unfinished, onUnfinished } = edited
  const value = valueAt(part, name)
  const onChange = (next: unknown) => edited.onChange(withValue(part, name, next), name)
  const error = edited.errorOf(name)
  const common = {
    label,
    description: description && visible(description),
    path: `${edited.path}.${name}`,
    value,
    unfinished,
    onUnfinished,
    onChange,
  }
  switch (input) {
    case 'expression':
      return (
        <ExpressionField
          {...common}
          description={[description, texts.expressionHelp].filter(Boolean).join('. ').replaceAll('..', '.')}
          error={error && visible(error)}
          values={edited.available(name)}
        />
      )
    case 'mapping':
    case 'rules': {
      const list = {
        ...common,
        values: edited.available(name),
        errorOf: (entry: string) => {
          const found = edited.errorOf(input === 'rules' ? `${name}[${entry}]` : `${name}.${entry}`)
          return found && visible(found)
        },
      }
      return input === 'rules' ? <RulesField {...list} transitions={field.choices ?? []} /> : <MappingField {...list} />
    }
    case 'record':
      return (
        <RecordField
          {...common}
          error={error && visible(error)}
          choices={edited.records[name.split('.').at(-1) ?? '']}
        />
      )
    case 'records':
      return (
        <RecordsField
          {...common}
          error={error && visible(error)}
          choices={edited.records[name.split('.').at(-1) ?? '']}
        />
      )
    default:
      return <PlainField {...common} field={field} input={input} error={error && visible(error)} />
  }
}

type FieldProps = {
  label: string
  description?: string
  error?: string
  value: unknown
  onChange: (value: unknown) => void
}

/** A field as in other forms. */
function PlainField({
  field,
  input,
  label,
  description,
  error,
  ...entry
}: FieldProps & {
  field: Field
  input: ReturnType<typeof inputOf>
  path: string
  unfinished: Unfinished
  onUnfinished: (path: string, text: unknown) => void
}) {
  // The ends of an edge are never empty.
  const isRequired = field.name === 'from' || field.name === 'to'
  const { text, change, isWrong } = useEntry<unknown>({
    ...entry,
    textOf: value => entryOf(input, field.schema, value),
    parse: text => {
      const problems: Record<string, string> = {}
      const value = enteredOf({ input, field: field.schema, isRequired }, text, field.name, problems)
      const [problem] = Object.values(problems)
      if (problem) throw new SyntaxError(problem)
      return input === 'flag' && value === false ? undefined : value
    },
  })
  return (
    <SchemaField
      path={field.name}
      input={input}
      field={field.schema}
      options={field.choices}
      suggestions={field.suggestions}
      allSuggestions={{}}
      problems={{}}
      entry={text}
      onChange={change}
      common={{
        label,
        description,
        error: isWrong ? (isRequired ? strings.form.required : strings.form.notJson) : error,
        required: isRequired,
      }}
    />
  )
}

/** The choices of a field, with records that only their ID names: the current ones, and the written text. */
function withIds(choices: Choice[] | undefined, current: string[], written: string): Choice[] {
  const known = choices ?? []
  const ids = current.filter(id => !known.some(({ value }) => value === id))
  const id = written.trim()
  const isNew =
    id !== '' &&
    ![...known, ...ids.map(each => ({ value: each, label: each }))].some(
      ({ value, label }) => value === id || label === id,
    )
  return [
    ...known,
    ...ids.map(value => ({ value, label: visible(value) })),
    ...(isNew ? [{ value: id, label: texts.byId(visible(id)) }] : []),
  ]
}

/** A record by its name, or by its ID if it is not listed. */
function RecordField({ label, description, error, value, onChange, choices }: FieldProps & { choices?: Choice[] }) {
  const [written, setWritten] = useState('')
  const current = typeof value === 'string' ? value : null
  const data = withIds(choices, current === null ? [] : [current], written)
  return (
    <Select
      label={label}
      description={description}
      error={error}
      data={data}
      value={current}
      onChange={next => onChange(next ?? undefined)}
      searchable
      searchValue={written}
      onSearchChange={setWritten}
      clearable
      clearButtonProps={{ 'aria-label': strings.form.clear(label) }}
      nothingFoundMessage={strings.nothingFound}
      maxDropdownHeight={260}
    />
  )
}

/** Records by their names. */
function RecordsField({ label, description, error, value, onChange, choices }: FieldProps & { choices?: Choice[] }) {
  const [written, setWritten] = useState('')
  const current = Array.isArray(value) ? value.filter(each => typeof each === 'string') : []
  return (
    <MultiSelect
      label={label}
      description={description}
      error={error}
      data={withIds(choices, current, written)}
      value={current}
      onChange={next => onChange(next.length > 0 ? next : undefined)}
      searchable
      searchValue={written}
      onSearchChange={setWritten}
      maxDropdownHeight={260}
    />
  )
}
