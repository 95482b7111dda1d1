import type { ComponentProps } from 'react'
import { FormButton, type Stale, useAction } from './actions.tsx'
import { type ObjectSchema, SchemaForm, type Values } from './schema-form.tsx'

type Command<Result> = {
  label: string
  schema: ObjectSchema
  run: (values: Values) => Promise<Result>
  stale: Stale
  /** Gets the answer, after which the form closes. */
  onResult?: (result: Result) => void
}

/** The form of a command, made of its schema. */
export function CommandForm<Result>({
  label,
  run,
  stale,
  onResult,
  onDone,
  ...form
}: Command<Result> & { onDone: () => void } & Partial<ComponentProps<typeof SchemaForm>>) {
  const command = useAction({
    run,
    stale,
    onDone: (result: Result) => {
      onResult?.(result)
      onDone()
    },
  })
  return (
    <SchemaForm
      {...form}
      submitLabel={label}
      isPending={command.isPending}
      error={command.error}
      onSubmit={values => command.mutate(values)}
      onCancel={onDone}
    />
  )
}

/** A button that opens the form of a command. */
export function CommandButton<Result>({
  label,
  size,
  ...command
}: Command<Result> & { size?: string } & Partial<ComponentProps<typeof SchemaForm>>) {
  return (
    <FormButton
      label={label}
      variant="default"
      size={size}
      form={close => <CommandForm label={label} {...command} onDone={close} />}
    />
  )
}
