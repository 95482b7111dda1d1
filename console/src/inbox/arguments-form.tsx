import { Button, Group, JsonInput, Stack } from '@mantine/core'
import type { ApprovalContext } from '@muster/client'
import { useDraft } from '#components/draft.tsx'
import { FieldChanges } from '#components/field-changes.tsx'
import { type ObjectSchema, parseObject, Restored, SchemaForm, type Values } from '#components/schema-form.tsx'
import * as strings from '#strings.ts'

const texts = strings.inbox

/** A value that a form shows as an empty field. */
const isEmpty = (value: unknown): boolean => value === '' || (Array.isArray(value) && value.length === 0)

/** A number with more digits than a field of a form keeps. */
const isExact = (value: unknown): boolean => typeof value === 'object' && value !== null && 'digits' in value

/** Returns the schema of the arguments that can be edited in a form; null if a form cannot edit them. */
function formSchema(tool: ApprovalContext['tool'] | undefined, proposed: Values): ObjectSchema | null {
  const { properties = {}, required = [] } = (tool?.parameters ?? {}) as ObjectSchema
  const names = Object.keys(properties).filter(name => !tool?.presets.includes(name))
  if (names.length === 0 || names.some(name => isExact(proposed[name]))) return null
  return { properties: Object.fromEntries(names.map(name => [name, properties[name]])), required }
}

/** Returns the proposed arguments with the fields that a form changed. */
function withChanges(proposed: Values, changes: Values): Values {
  const edited = { ...proposed }
  for (const [name, value] of Object.entries(changes)) {
    if (value !== null) edited[name] = value
    else if (!isEmpty(proposed[name])) delete edited[name]
  }
  return edited
}

type Props = {
  proposed: Values
  onApprove: (edited: Values) => void
  onCancel: () => void
}

/**
 * The arguments of a call to be edited: a form of the tool's parameters, or JSON where they are unknown. Edits are kept until
 * the decision was sent.
 */
export function ArgumentsForm({ tool, ...props }: Props & { tool: ApprovalContext['tool'] | undefined }) {
  const schema = formSchema(tool, props.proposed)
  if (!schema) return <JsonForm {...props} />
  return (
    <SchemaForm
      schema={schema}
      initial={props.proposed}
      submitLabel={texts.approveEdited}
      isSentLater
      onSubmit={changes => props.onApprove(withChanges(props.proposed, changes))}
      onCancel={props.onCancel}
    />
  )
}

function JsonForm({ proposed, onApprove, onCancel }: Props) {
  const written = JSON.stringify(proposed, null, 2)
  const { value: text, setValue: setText, isRestored, forget } = useDraft('arguments', written)
  const parsed = parseObject(text)
  return (
    <Stack gap="sm">
      {isRestored && text !== written && <Restored onDiscard={() => setText(written)} />}
      <JsonInput
        label={texts.arguments}
        description={texts.argumentsHelp}
        value={text}
        onChange={setText}
        error={parsed ? null : texts.wrongJson}
        autosize
        minRows={4}
        maxRows={20}
        data-autofocus
      />
      {parsed && <FieldChanges before={proposed} after={parsed} />}
      <Group gap="sm">
        <Button size="xs" disabled={!parsed} onClick={() => parsed && onApprove(parsed)}>
          {texts.approveEdited}
        </Button>
        <Button
          size="xs"
          variant="default"
          onClick={() => {
            forget()
            onCancel()
          }}
        >
          {strings.cancel}
        </Button>
      </Group>
    </Stack>
  )
}
