import { Button, type ButtonProps, Group, Modal, Stack, Text } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { notifications } from '@mantine/notifications'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { ReactNode } from 'react'
import * as strings from '../strings.ts'
import { FailureAlert } from './states.tsx'

/** Keys of the queries that an action makes stale. */
export type Stale = readonly unknown[][]

/** A mutation after which queries are read again and a message is shown. */
export function useAction<Input = void, Result = unknown>({
  run,
  stale = [],
  message,
  onDone,
}: {
  run: (input: Input) => Promise<Result>
  stale?: Stale
  message?: string
  onDone?: (result: Result) => void
}) {
  const cache = useQueryClient()
  return useMutation({
    mutationFn: async (input: Input) => run(input),
    onSuccess: result => {
      if (message) notifications.show({ message, color: 'teal' })
      onDone?.(result)
    },
    onSettled: () => Promise.all(stale.map(queryKey => cache.invalidateQueries({ queryKey }))),
  })
}

/**
 * A button that runs an action, after a question where `question` is given. A failure is explained in a dialog, which
 * offers to try again.
 */
export function ActionButton({
  label,
  run,
  stale,
  message,
  question,
  onDone,
  ...props
}: {
  label: string
  run: () => Promise<unknown>
  stale?: Stale
  message?: string
  /** What the action does, for what cannot be undone. */
  question?: ReactNode
  onDone?: () => void
} & ButtonProps) {
  const [isOpen, dialog] = useDisclosure()
  const action = useAction({
    run,
    stale,
    message,
    onDone: () => {
      dialog.close()
      onDone?.()
    },
  })
  const close = () => {
    dialog.close()
    action.reset()
  }
  return (
    <>
      <Button
        size="xs"
        variant="default"
        {...props}
        loading={action.isPending && !question}
        onClick={() => (question ? dialog.open() : action.mutate())}
      >
        {label}
      </Button>
      <Modal opened={isOpen || (!question && action.isError)} onClose={close} title={label}>
        <Stack gap="md">
          {question && <Text component="div">{question}</Text>}
          {action.error && <FailureAlert error={action.error} />}
          <Group>
            <Button color={props.color} loading={action.isPending} onClick={() => action.mutate()}>
              {question ? label : strings.retry}
            </Button>
            <Button variant="default" onClick={close} data-autofocus>
              {strings.cancel}
            </Button>
          </Group>
        </Stack>
      </Modal>
    </>
  )
}

/** The buttons of a row: in one line if it is wide enough. */
export function RowActions({ children }: { children: ReactNode }) {
  return (
    <Group gap="xs" className="row-actions">
      {children}
    </Group>
  )
}

/** A button that opens a dialog with a form; `form` receives a function that closes it. */
export function FormButton({
  label,
  title = label,
  form,
  modalSize = 'lg',
  ...props
}: {
  label: string
  title?: string
  form: (close: () => void) => ReactNode
  modalSize?: string
} & ButtonProps) {
  const [isOpen, dialog] = useDisclosure()
  return (
    <>
      <Button {...props} onClick={dialog.open}>
        {label}
      </Button>
      <Modal opened={isOpen} onClose={dialog.close} title={title} size={modalSize}>
        {isOpen && form(dialog.close)}
      </Modal>
    </>
  )
}
