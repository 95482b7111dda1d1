import { Badge, Group, Text } from '@mantine/core'
import * as strings from '#strings.ts'
import { FormButton, type Stale, useAction } from './actions.tsx'
import { SchemaForm } from './schema-form.tsx'
import { visible } from './text.tsx'

type Bag = Record<string, string>

/** Keys that the platform sets. */
const isOwn = (key: string) => !key.startsWith('system.')

/** Returns the filter of a list by a tag, which is written as `key=value`. */
export function tagFilter(text: string | undefined): { tags?: Bag } {
  const at = text?.indexOf('=') ?? -1
  return text && at > 0 ? { tags: { [text.slice(0, at).trim()]: text.slice(at + 1).trim() } } : {}
}

/** The tags of a record. */
export function Tags({ tags }: { tags: Bag }) {
  const entries = Object.entries(tags)
  if (entries.length === 0) return <Text c="dimmed">{strings.tags.none}</Text>
  return (
    <Group gap={6}>
      {entries.map(([key, value]) => (
        <Badge key={key} variant="default" maw="100%">
          {visible(value ? `${key}: ${value}` : key)}
        </Badge>
      ))}
    </Group>
  )
}

const schema = {
  properties: {
    tags: {
      type: 'array',
      items: { type: 'string' },
      title: strings.tags.title,
      description: strings.tags.help,
    },
  },
}

const textOf = ([key, value]: [string, string]) => (value ? `${key}=${value}` : key)

/** Edits the tags of a record, each as `key=value`. */
export function TagsButton({
  tags,
  save,
  stale,
}: {
  tags: Bag
  save: (tags: Bag) => PromiseLike<unknown>
  stale: Stale
}) {
  const own = Object.entries(tags).filter(([key]) => isOwn(key))
  return (
    <FormButton
      label={strings.tags.edit}
      variant="default"
      size="xs"
      form={close => <TagsForm texts={own.map(textOf)} save={save} stale={stale} onDone={close} />}
    />
  )
}

function TagsForm({
  texts,
  save,
  stale,
  onDone,
}: {
  texts: string[]
  save: (tags: Bag) => PromiseLike<unknown>
  stale: Stale
  onDone: () => void
}) {
  const action = useAction({
    run: async (changed: string[]) => {
      const pairs = changed.map(text => {
        const at = text.indexOf('=')
        return at < 0 ? [text.trim(), ''] : [text.slice(0, at).trim(), text.slice(at + 1).trim()]
      })
      await save(Object.fromEntries(pairs))
    },
    stale,
    onDone,
  })
  return (
    <SchemaForm
      schema={schema}
      initial={{ tags: texts }}
      isPending={action.isPending}
      error={action.error}
      onSubmit={({ tags }) => (tags === undefined ? onDone() : action.mutate((tags ?? []) as string[]))}
      onCancel={onDone}
    />
  )
}
