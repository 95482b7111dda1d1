import { Box, Button, Group, List, Paper, Stack, Text } from '@mantine/core'
import { IconChevronDown } from '@tabler/icons-react'
import { type ReactNode, useState } from 'react'
import { enteredOf, entryOf, type inputOf, SchemaField, type Values } from '#components/schema-form.tsx'
import { visible } from '#components/text.tsx'
import * as strings from '#strings.ts'
import { ExpressionField, MappingField, RulesField, type Unfinished, useEntry } from './expression.tsx'
import { type Field, valueAt, withValue } from './fields.ts'
import type { Available } from './kind.ts'

const texts = strings.editor

/** A node or an edge that is edited by a form. */
export type EditedPart = {
  part: Values
  /** Distinguishes unfinished texts of different parts. */
  path: string
  fields: Field[]
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
      {more.length > 0 && (
        <Folded title={texts.more} isOpen={isOpen}>
          <Stack gap="md">
            {more.map(field => (
              <PartField key={field.name} field={field} {...props} />
            ))}
          </Stack>
        </Folded>
      )}
      {values.size > 0 && (
        <Folded title={texts.values}>
          <ReadableValues values={[...values.values()]} />
        </Folded>
      )}
    </Stack>
  )
}

/** A part that a button opens. */
function Folded({ title, isOpen, children }: { title: string; isOpen?: boolean; children: ReactNode }) {
  const [open, setOpen] = useState(isOpen === true)
  return (
    <Paper withBorder radius="md">
      <Button
        variant="subtle"
        color="gray"
        fullWidth
        justify="space-between"
        rightSection={<IconChevronDown size={16} style={open ? { rotate: '180deg' } : undefined} />}
        aria-expanded={open}
        onClick={() => setOpen(!open)}
      >
        {title}
      </Button>
      {open && <Box p="md">{children}</Box>}
    </Paper>
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

/** Returns a value that the control of a text or a list of texts shows; undefined for others. */
function fitting(input: Field['input'], value: unknown): unknown {
  if (input === 'texts') return Array.isArray(value) ? value.filter(each => typeof each === 'string') : undefined
  return input === 'text' && typeof value !== 'string' ? undefined : value
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
    // A definition that is written as JSON may have any value.
    textOf: value => entryOf(input, field.schema, fitting(input, value)),
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
