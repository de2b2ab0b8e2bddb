"""The bundled sample dump: games of the bundled network, conditioned on ratings 800 to 2400."""
