import { ThemeIcon } from '@mantine/core'
import { IconBinaryTree2 } from '@tabler/icons-react'

/** The mark of the product. */
export function Mark() {
  return (
    <ThemeIcon size={34} radius="md" variant="filled">
      <IconBinaryTree2 size={22} aria-hidden />
    </ThemeIcon>
  )
}
